"""The custom resource that turns fast snapshot restore on and off: CloudFormation has no type for it."""
