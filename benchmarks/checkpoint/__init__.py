"""Checkpoint benchmark: the cost of saves and restores, compared with torch's methods."""
