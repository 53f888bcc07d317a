"""Breaks running trainers and their storage again and again, and holds that nothing is lost by it."""
