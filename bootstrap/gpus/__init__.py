"""The node's GPUs: their health, the links between them, and environment variables for collectives."""
