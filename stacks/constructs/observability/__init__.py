"""Constructs for the ObservabilityStack: metrics, alarms, topic, dashboard, budget and log encryption."""
