"""Delivers changes to an account: check, diff, gate, deploy and drift detection.

GitHub workflows, the AWS pipeline and users' laptops all run `python -m stacks deliver`.
"""
