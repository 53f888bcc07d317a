"""Creates datasets from text or files, and reads them as batches in a reproducible order.

``publish``, ``prepare`` and ``text`` (tokenization) create datasets. Four modules read them, each building on the
preceding one: ``dataset`` (files and record), ``samples`` (windows and documents), ``order`` and ``batches``.
``streaming`` reads blocks from S3 instead of local files. ``mapped`` reads user-supplied map-style datasets.
"""
