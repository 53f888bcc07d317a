"""The tag that identifies the deployment of each resource. Policies, budgets and operator commands use it."""

from __future__ import annotations

DEPLOYMENT_TAG = "trainstack:deployment"
