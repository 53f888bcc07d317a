"""Asks an account whether a deployment can run in it: read-only calls, and dry runs of the launch that is deployed.

Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/ (DescribeInstanceTypeOfferings,
DescribeCapacityReservations, GetSpotPlacementScores, RunInstances with DryRun),
https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_GetServiceQuota.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from stacks.account import capacity, launch
from stacks.account.launch import Templates
from stacks.config import DeploymentConfig
from stacks.errors import Problem

MISSING_RIGHT = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
ClientOf = Callable[[str], Any]
Check = Callable[[DeploymentConfig, ClientOf], Iterator[Problem]]
CHECKS: tuple[tuple[str, str, Check], ...] = (
    ("quotas", "servicequotas:GetServiceQuota", capacity.quotas),
    ("offerings by zone", "ec2:DescribeInstanceTypeOfferings", capacity.offerings),
    ("reservation", "ec2:DescribeCapacityReservations", capacity.reservation),
    ("spot placement score", "ec2:GetSpotPlacementScores", capacity.spot_placement),
)


def ask(
    config: DeploymentConfig,
    *,
    templates: Callable[[], Templates],
    progress: Callable[[str], None] = lambda text: None,
    client_of: ClientOf | None = None,
) -> list[Problem]:
    """Return what the account says against a deployment; each question that it cannot answer is a warning.

    Args:
        config: The deployment.
        templates: Synthesises the deployment, for the launch that is tried.
        progress: Told what is asked.
        client_of: Makes the client of a service; the default uses the credentials of the environment.
    """
    clients = client_of or _clients(config.region)
    progress(f"credentials and account, {config.region}")
    if (refused := _account(config, clients)) is not None:
        return [refused]
    found: list[Problem] = []
    for title, right, check in CHECKS:
        progress(title)
        found += _answered(title, right, lambda check=check: list(check(config, clients)))  # type: ignore[misc]
    progress("dry run of the launch")
    rights = "ec2:RunInstances, cloudformation:DescribeStackResources"
    found += _answered("dry run", rights, lambda: list(launch.dry_runs(config, clients, templates())))
    return found


def synthesised(path: Path) -> Templates:
    """Return the templates of a deployment file, made by the CDK as for a deploy."""
    return launch.synthesise(path)


def _clients(region: str) -> ClientOf:
    settings = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
    session = boto3.Session(region_name=region)
    return lambda service: session.client(service, config=settings)


def _account(config: DeploymentConfig, clients: ClientOf) -> Problem | None:
    """Return why nothing can be asked, or None."""
    try:
        account = clients("sts").get_caller_identity()["Account"]
    except (NoCredentialsError, PartialCredentialsError) as error:
        remedy = "`aws configure`, `aws sso login`, or set AWS_PROFILE"
        return Problem("--aws", str(error), "there are no AWS credentials", remedy)
    except (BotoCoreError, ClientError) as error:
        return Problem("--aws", str(error), "AWS does not answer", "check network, proxy and credentials")
    if config.account is not None and account != config.account:
        rule = f"the credentials are of account {account}"
        return Problem("account", config.account, rule, "use credentials of that account, or correct the key")
    return None


def _answered(title: str, right: str, question: Callable[[], list[Problem]]) -> list[Problem]:
    try:
        return question()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in MISSING_RIGHT:
            rule, remedy = f"{title}: these credentials may not ask", f"grant {right}, or ask somebody who may"
        else:
            rule, remedy = f"{title}: the account did not answer: {error}", "see the message"
        return [Problem("--aws", code, rule, remedy, "warning")]
    except BotoCoreError as error:
        rule = f"{title}: AWS does not answer"
        return [Problem("--aws", str(error), rule, "check network and proxy", "warning")]
