"""Manages this process: its place in the gang, torch settings, precision and outcome."""
