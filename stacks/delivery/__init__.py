"""Carries a change to an account: look at it, ask whether it may pass, deploy it, look for drift.

What GitHub's workflows, the pipeline in AWS and a person at a laptop run is this, through `python -m stacks deliver`.
"""
