"""Constructs for the PipelineStack: pipeline, gates, drift detection and roles for GitHub workflows."""
