"""The policy gate: what four checkers say of every template that the deployments in config/ make."""
