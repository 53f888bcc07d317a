"""Converts a run's state to named tensors and JSON, and back. Restored state either equals the saved state or is
rejected."""
