"""Makes datasets from text or files, and reads them as batches in a reproducible order.

Datasets are made by the commands in ``publish`` and ``prepare``, and by ``text`` (tokenization). From the bottom up,
datasets are read by ``dataset`` (files and record), ``samples`` (windows and documents), ``order`` and ``batches``.
``streaming`` reads blocks from S3 instead of local files. ``mapped`` serves user-supplied map-style datasets.
"""
