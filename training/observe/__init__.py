"""Observes a run: metrics, their sinks and readers, profiler traces and rank reports."""
