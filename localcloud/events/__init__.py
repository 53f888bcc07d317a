"""EventBridge buses, rules and schedules."""
