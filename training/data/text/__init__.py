"""Tokenization: turns a folder of text files into a dataset.

The modules, in processing order: ``files`` selects files, ``documents`` and ``parquet`` read them, ``bpe``
provides the tokenizer, ``parts`` encodes in several processes, ``shards`` writes the dataset, and ``destination``
publishes it. ``tokenize`` is the command.
"""
