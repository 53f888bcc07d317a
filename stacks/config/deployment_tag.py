"""The tag with which every resource names its deployment. Policies, budgets and the commands of operators read it."""

from __future__ import annotations

DEPLOYMENT_TAG = "trainstack:deployment"
