"""CloudWatch: metrics from log lines, and alarms."""
