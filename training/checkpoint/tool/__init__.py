"""The command line for checkpoint stores: ``python -m training checkpoint``."""
