"""CDK constructs for the stacks, one concern per module."""
