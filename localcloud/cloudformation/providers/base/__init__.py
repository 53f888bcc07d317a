"""Base classes and helpers for the providers."""
