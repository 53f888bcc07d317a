"""Submits runs to a Slurm cluster, and observes them there."""
