"""Simulates a run on spot capacity: recorded or random markets, and the run controller's decisions in them."""
