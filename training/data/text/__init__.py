"""Tokenization: creates a dataset from a folder of text files.

The modules, in processing order: ``files`` selects files, ``documents`` and ``parquet`` read them, ``bpe`` provides the
tokenizer, ``parts`` encodes in several processes, ``shards`` writes the dataset, and ``destination`` publishes it.
``tokenize`` is the command.
"""
