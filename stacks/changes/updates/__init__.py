"""The updates that CloudFormation would perform, by resource and property."""
