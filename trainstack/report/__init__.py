"""Writes one HTML page about a run."""
