"""The templates on both sides of a comparison, and their values and references."""
