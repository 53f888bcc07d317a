"""Deadlines of runs: the estimates behind decisions, and the number of On-Demand nodes to buy."""
