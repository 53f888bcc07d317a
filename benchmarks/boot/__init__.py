"""Boot time, and the cost of each kind of node loss: `python -m benchmarks.boot`."""
