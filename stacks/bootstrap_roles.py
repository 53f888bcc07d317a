"""The roles that `cdk bootstrap` made in an account, by which everything is deployed and read.

Source (2026-11): https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html
"""

from __future__ import annotations

from typing import Literal

QUALIFIER = "hnb659fds"
"""The CDK's own; `cdk bootstrap --qualifier` would make it another."""
Duty = Literal["deploy", "file-publishing", "image-publishing", "lookup"]
LOOKUP: tuple[Duty, ...] = ("lookup",)
DEPLOY: tuple[Duty, ...] = ("deploy", "file-publishing", "lookup")
"""What the CDK's command line takes on to deploy stacks without container images."""


def role_name(duty: Duty, account: str, region: str) -> str:
    """Return the name of a role of the bootstrap stack with the CDK's own qualifier."""
    return f"cdk-{QUALIFIER}-{duty}-role-{account}-{region}"


def role_arn(duty: Duty, *, partition: str, account: str, region: str) -> str:
    """Return its ARN."""
    return f"arn:{partition}:iam::{account}:role/{role_name(duty, account, region)}"
