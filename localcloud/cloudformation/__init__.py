"""A CloudFormation engine: templates become resources through one small provider per type."""
