"""Creates datasets from text or files, and reads them as batches in a reproducible order.

``publish``, ``prepare`` and ``text`` (tokenization) create datasets. From the bottom up, ``dataset`` (files and
record), ``samples`` (windows and documents), ``order`` and ``batches`` read them. ``streaming`` reads blocks from S3
instead of local files. ``mapped`` reads user-supplied map-style datasets.
"""
