"""The costs of a deployment."""
