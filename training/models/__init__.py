"""Model architectures, user-supplied models, and FLOPs estimates."""
