"""Capacity planning: offerings and prices by region, instance type selection, and the fleet plan."""
