"""Template loading, validation, parameters, intrinsic functions and dependency graphs."""
