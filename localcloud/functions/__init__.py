"""Lambda functions that run as processes."""
