"""Providers for EC2 resource types."""
