"""Deadlines of runs: the numbers behind them, and the number of nodes to buy on demand."""
