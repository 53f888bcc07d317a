"""Drift detection for the nightly Lambda function and `python -m stacks deliver drift`."""
