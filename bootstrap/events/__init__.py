"""The node's events: schema, event log, and delivery to CloudWatch Logs."""
