"""The price and availability of spot capacity, according to AWS, and moves of nodes to a cheaper place."""
