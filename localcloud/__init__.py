"""Embedded AWS emulator: an account on this machine that runs instances and functions as real processes."""
