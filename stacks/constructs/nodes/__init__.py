"""Constructs for the nodes: launch template, role, placement group, capacity reservation and service-linked roles."""
