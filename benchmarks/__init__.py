"""Benchmarks and experiments; docs/verification.md lists their results."""
