"""Turns a deployment file with `engine: kubernetes` into manifests, and observes the run through kubectl."""
