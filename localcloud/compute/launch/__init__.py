"""Resolves launch parameters to a launch specification, and manages the resources that launches refer to."""
