"""The CDK app: configuration, templates, review and delivery of a deployment."""
