"""Mutation test: single-line faults in the packages, each of which a named test must detect."""
