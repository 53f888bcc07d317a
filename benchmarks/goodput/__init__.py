"""Goodput: the share of available spot capacity that a run would have used, determined by replaying recorded traces."""
