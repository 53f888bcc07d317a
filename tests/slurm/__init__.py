"""Runs on a real Slurm cluster: `python -m tests.slurm` (needs root; see `tests.slurm.cluster`)."""
