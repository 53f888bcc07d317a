"""CloudFormation engine: creates a template's resources, using one provider for each resource type."""
