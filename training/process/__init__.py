"""Manages this process: its place in the gang, its torch settings, its precision, and its outcome."""
