"""The stacks with the nodes of a run: a fleet, or a cluster of an AWS service."""
