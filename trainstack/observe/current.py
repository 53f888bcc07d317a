"""The current status of a deployment, for all commands that need it."""

from __future__ import annotations

import time

from stacks.capacity.catalogue import catalogue
from trainstack import account
from trainstack.observe import status
from trainstack.session import Account


def observing(region: str | None) -> Account:
    """Return an account with the clients that an observation uses."""
    return Account(region).prepare("cloudformation", "ssm", "s3", "ec2")


def status_of(opened: Account, deployment: account.Deployment) -> status.Status:
    """Return a deployment's status now."""
    now = time.time()
    return status.status_of(account.observe(opened.client, deployment, now), catalogue(), opened.region, now)
