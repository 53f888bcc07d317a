"""Spot economics: compares the cost of a run under several policies by replaying recorded prices and capacity."""
