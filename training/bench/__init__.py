"""Trainer benchmarks for this machine, and the learning-rate range test."""
