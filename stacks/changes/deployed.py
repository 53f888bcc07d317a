"""The templates that are deployed, as CloudFormation holds them: read-only calls with the caller's credentials.

Sources (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_GetTemplate.html and
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html (states of a stack).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import boto3
import yaml
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from stacks.account import ClientOf
from stacks.changes.assembly import Assembly, StackTemplate
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem

SOURCE = "--against deployed"
NOT_THERE = ("REVIEW_IN_PROGRESS", "DELETE_COMPLETE")
NEVER_MADE = "ROLLBACK_COMPLETE"
REMEDIES: Mapping[str, str] = {
    "UPDATE_ROLLBACK_FAILED": "`aws cloudformation continue-update-rollback --stack-name {name}`, then ask again",
    "ROLLBACK_FAILED": "`aws cloudformation delete-stack --stack-name {name}`, then deploy",
    "CREATE_FAILED": "`aws cloudformation delete-stack --stack-name {name}`, then deploy",
    "DELETE_FAILED": "see why in its events, then `aws cloudformation delete-stack --stack-name {name}` again",
    "UPDATE_FAILED": "`aws cloudformation rollback-stack --stack-name {name}`, then ask again",
}
"""What to do about a stack that failed, by its state."""


def deployed(
    config: DeploymentConfig, wanted: Assembly, client_of: ClientOf | None = None
) -> tuple[dict[str, StackTemplate], list[str]]:
    """Return the deployed stacks that a deploy of `wanted` would change, and what is to be said of them.

    Args:
        config: The deployment.
        wanted: The stacks as they would be.
        client_of: Makes the client of a service; the default uses the credentials of the environment.

    Raises:
        ConfigError: No credentials, no answer, no right to ask, or a stack that failed or is not ours.
    """
    try:
        clients = client_of or _clients(config.region)
        account = clients("sts").get_caller_identity()["Account"]
        if config.account is not None and account != config.account:
            rule, remedy = f"the credentials are of account {account}", "use those of that account, or correct the key"
            raise ConfigError(SOURCE, [Problem("account", config.account, rule, remedy)])
        return _stacks(clients("cloudformation"), wanted, f"aws://{account}/{config.region}")
    except (NoCredentialsError, PartialCredentialsError) as error:
        remedy = "`aws configure`, `aws sso login`, or set AWS_PROFILE; or compare with a revision or a folder"
        raise ConfigError(SOURCE, [Problem("credentials", str(error), "there are none", remedy)]) from error
    except ClientError as error:
        code = error.response["Error"]["Code"]
        remedy = "grant cloudformation:DescribeStacks and cloudformation:GetTemplate, or sign in again"
        raise ConfigError(SOURCE, [Problem("credentials", code, f"AWS refuses: {error}", remedy)]) from error
    except BotoCoreError as error:
        rule, remedy = "AWS does not answer", "check region, network and proxy"
        raise ConfigError(SOURCE, [Problem("region", config.region, f"{rule}: {error}", remedy)]) from error


def _clients(region: str) -> ClientOf:
    settings = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
    session = boto3.Session(region_name=region)
    return lambda service: session.client(service, config=settings)


def _stacks(client: Any, wanted: Assembly, place: str) -> tuple[dict[str, StackTemplate], list[str]]:
    found: dict[str, StackTemplate] = {}
    notes: list[str] = []
    problems: list[Problem] = []
    for stack in wanted.values():
        described = _described(client, stack.name)
        state = NOT_THERE[0] if described is None else str(described["StackStatus"])
        if state in NOT_THERE or described is None:
            continue
        if state == NEVER_MADE:
            notes.append(f"{stack.name}: its first deploy failed; the next one removes what is there and begins anew")
            continue
        refused = _state_problem(stack.name, state)
        if refused is not None:
            problems.append(refused)
            continue
        template = _template(client.get_template(StackName=stack.name)["TemplateBody"])
        if template is None or not set(template.get("Resources", {})) & set(stack.resources):
            rule, remedy = (
                "is deployed, but from a template that is not Trainstack's",
                "give the deployment another name",
            )
            problems.append(Problem("name", stack.name, rule, remedy))
            continue
        protected = described.get("EnableTerminationProtection")
        found[stack.id] = StackTemplate(stack.id, stack.name, template, place, protected)
    if problems:
        raise ConfigError(SOURCE, problems)
    missing = [stack.name for stack in wanted.values() if stack.id not in found]
    if missing:
        notes.append(f"not deployed yet: {', '.join(missing)}")
    return found, notes


def _described(client: Any, name: str) -> Mapping[str, Any] | None:
    try:
        stacks = client.describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":  # there is no such stack
            return None
        raise
    described: Mapping[str, Any] = stacks[0]
    return described


def _state_problem(name: str, state: str) -> Problem | None:
    if state in REMEDIES:
        rule = f"failed ({state}): what a deploy would do to it cannot be told"
        return Problem("stack", name, rule, REMEDIES[state].format(name=name))
    if state.endswith("_IN_PROGRESS"):
        remedy = f"wait: `aws cloudformation describe-stacks --stack-name {name}` says when it has ended"
        return Problem("stack", name, f"is being changed ({state})", remedy)
    return None


def _template(body: Any) -> Mapping[str, Any] | None:
    """Return a template as boto3 hands it out: a mapping, or the text it was deployed as; None when it is neither."""
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except ValueError:
            try:
                body = yaml.safe_load(body)
            except yaml.YAMLError:  # functions in short form, which the CDK does not write
                return None
    return body if isinstance(body, Mapping) else None
