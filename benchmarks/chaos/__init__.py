"""Chaos experiment: breaks running trainers and their storage, and checks that lost work stays within bounds."""
