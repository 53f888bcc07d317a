"""Compares what stacks made with what is there now: for the nightly function and `python -m stacks deliver drift`."""
