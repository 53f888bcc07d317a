"""The roles and the bucket that `cdk bootstrap` creates in an account. Every deploy and every comparison uses them.

Source (2026-11): https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html, and bootstrapping-customizing.html in
the same guide.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stacks.errors import ConfigError, Problem

if TYPE_CHECKING:  # the commands that only need names start faster without the CDK
    from constructs import Construct

QUALIFIER_KEY = "@aws-cdk/core:bootstrapQualifier"
"""The key in cdk.json's context that names the bootstrap's qualifier (`cdk bootstrap --qualifier`)."""
DEFAULT_QUALIFIER = "hnb659fds"
PROJECT_FILE = Path("cdk.json")
Duty = Literal["deploy", "file-publishing", "image-publishing", "lookup"]
LOOKUP: tuple[Duty, ...] = ("lookup",)
DEPLOY: tuple[Duty, ...] = ("deploy", "file-publishing", "lookup")
"""The roles that the CDK CLI assumes to deploy stacks without container images."""


def role_arn(duty: Duty, qualifier: str, *, partition: str, account: str, region: str) -> str:
    """Return the ARN of a bootstrap stack role."""
    return f"arn:{partition}:iam::{account}:role/cdk-{qualifier}-{duty}-role-{account}-{region}"


def asset_bucket(qualifier: str, *, account: str, region: str) -> str:
    """Return the name of the bootstrap stack's bucket, which contains the bundles, function code and templates."""
    return f"cdk-{qualifier}-assets-{account}-{region}"


def qualifier_of(scope: Construct) -> str:
    """Return the qualifier with which the CDK synthesizes the stack that contains a construct."""
    from aws_cdk import Stack

    return Stack.of(scope).synthesizer.bootstrap_qualifier or DEFAULT_QUALIFIER


def project_qualifier() -> str:
    """Return the qualifier in the project's cdk.json, which every command of the project uses.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        context = json.loads(PROJECT_FILE.read_text(encoding="utf-8"))["context"]
        return str(context.get(QUALIFIER_KEY, DEFAULT_QUALIFIER))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        rule = f"cannot be read as the CDK's project file: {type(error).__name__}: {error}"
        problem = Problem("the file", str(PROJECT_FILE), rule, "run the command in the repository root")
        raise ConfigError(str(PROJECT_FILE), [problem]) from error
