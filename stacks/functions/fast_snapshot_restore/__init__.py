"""The custom resource that enables and disables fast snapshot restore. CloudFormation does not have a type for it."""
