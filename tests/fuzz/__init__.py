"""Damaged and hostile input for every reader of bytes from outside; see `python -m tests.fuzz --help`."""
