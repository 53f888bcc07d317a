"""Manages this process: its membership in the gang, torch settings, precision and outcome."""
