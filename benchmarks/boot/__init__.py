"""What a node's boot and each kind of loss cost, in seconds: `python -m benchmarks.boot`."""
