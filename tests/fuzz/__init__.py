"""Damaged and hostile input for every reader of external data; see `python -m tests.fuzz --help`."""
