"""Builds of container images, cold and after edits: `python -m benchmarks.image`."""
