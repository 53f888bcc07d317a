"""Reads the deployed templates from CloudFormation with the caller's credentials. All calls are read-only.

Sources (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_GetTemplate.html and
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html (states of a stack).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import boto3
import yaml
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from stacks.changes.templates.template_set import StackTemplate, TemplateSet
from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.errors import ConfigError, Problem

if TYPE_CHECKING:  # the checks of an account import the CDK, which takes seconds
    from stacks.account.account import ClientOf

SOURCE = "--against deployed"
ABSENT_STATES = ("REVIEW_IN_PROGRESS", "DELETE_COMPLETE")
CREATION_FAILED = "ROLLBACK_COMPLETE"
REMEDIES: Mapping[str, str] = {
    "UPDATE_ROLLBACK_FAILED": "run `aws cloudformation continue-update-rollback --stack-name {name}`, then retry",
    "ROLLBACK_FAILED": "run `aws cloudformation delete-stack --stack-name {name}`, then deploy",
    "CREATE_FAILED": "run `aws cloudformation delete-stack --stack-name {name}`, then deploy",
    "DELETE_FAILED": "see the stack's events, then run `aws cloudformation delete-stack --stack-name {name}` again",
    "UPDATE_FAILED": "run `aws cloudformation rollback-stack --stack-name {name}`, then retry",
}
"""The remedy for a failed stack, keyed by the stack's state."""


def deployed(
    config: DeploymentConfig, wanted: TemplateSet, client_of: ClientOf | None = None
) -> tuple[dict[str, StackTemplate], list[str]]:
    """Return the deployed stacks that deploying `wanted` would change, and notes about them.

    Args:
        config: The deployment.
        wanted: The stacks after the deploy.
        client_of: Function that creates the client for a service. The default uses the environment's credentials.

    Raises:
        ConfigError: Credentials or permissions are missing, AWS does not respond, or a stack has failed or does not
            belong to Trainstack.
    """
    try:
        clients = client_of or _clients(config.region)
        account = clients("sts").get_caller_identity()["Account"]
        if config.account is not None and account != config.account:
            rule = f"the credentials belong to account {account}"
            remedy = "use the configured account's credentials, or correct the key"
            raise ConfigError(SOURCE, [Problem("account", config.account, rule, remedy)])
        return _stacks(clients("cloudformation"), wanted, f"aws://{account}/{config.region}", config.name)
    except (NoCredentialsError, PartialCredentialsError) as error:
        remedy = "run `aws configure` or `aws sso login`, or set AWS_PROFILE; or compare with a revision or a folder"
        raise ConfigError(SOURCE, [Problem("credentials", str(error), "found no credentials", remedy)]) from error
    except ClientError as error:
        code = error.response["Error"]["Code"]
        remedy = "grant cloudformation:DescribeStacks and cloudformation:GetTemplate, or sign in again"
        raise ConfigError(SOURCE, [Problem("credentials", code, f"AWS rejected the call: {error}", remedy)]) from error
    except BotoCoreError as error:
        rule, remedy = "AWS does not respond", "check the region, network and proxy"
        raise ConfigError(SOURCE, [Problem("region", config.region, f"{rule}: {error}", remedy)]) from error


def _clients(region: str) -> ClientOf:
    settings = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
    session = boto3.Session(region_name=region)
    return lambda service: session.client(service, config=settings)


def _stacks(
    client: Any, wanted: TemplateSet, environment: str, name: str
) -> tuple[dict[str, StackTemplate], list[str]]:
    found: dict[str, StackTemplate] = {}
    notes: list[str] = []
    problems: list[Problem] = []
    for stack in wanted.values():
        described = _described(client, stack.name)
        state = ABSENT_STATES[0] if described is None else str(described["StackStatus"])
        if state in ABSENT_STATES or described is None:
            continue
        if state == CREATION_FAILED:
            notes.append(
                f"{stack.name}: the first deploy failed; `make deploy` and `python -m stacks deliver deploy` delete "
                "and recreate the stack. Plain `cdk deploy` cannot do so if the stack has termination protection. A "
                "pipeline in AWS cannot delete it: run `aws cloudformation delete-stack --stack-name "
                f"{stack.name}` before you approve its deploy"
            )
            continue
        problem = _state_problem(stack.name, state)
        if problem is not None:
            problems.append(problem)
            continue
        template = _template(client.get_template(StackName=stack.name)["TemplateBody"])
        if template is None or not set(template.get("Resources", {})) & set(stack.resources):
            rule = "is deployed from a template that does not belong to Trainstack"
            problems.append(Problem("name", stack.name, rule, "choose another name for the deployment"))
            continue
        protected = described.get("EnableTerminationProtection")
        values = {one["ParameterKey"]: one["ParameterValue"] for one in described.get("Parameters", [])}
        found[stack.id] = StackTemplate(stack.id, stack.name, template, environment, protected, values)
    if problems:
        raise ConfigError(SOURCE, problems)
    missing = [stack.name for stack in wanted.values() if stack.id not in found]
    if missing:
        notes.append(f"not deployed yet: {', '.join(missing)}")
    if not found:
        notes += other_deployments(client, name)
    return found, notes


def other_deployments(client: Any, name: str) -> list[str]:
    """Return a note if a deploy would create an additional deployment in the region, for example after a rename."""
    stacks = [stack for page in client.get_paginator("describe_stacks").paginate() for stack in page["Stacks"]]
    deployments: dict[str, list[str]] = {}
    for stack in stacks:
        tags = {tag["Key"]: tag["Value"] for tag in stack.get("Tags", [])}
        if DEPLOYMENT_TAG in tags:
            deployments.setdefault(tags[DEPLOYMENT_TAG], []).append(stack["StackName"])
    if not deployments or name in deployments:
        return []
    others = "; ".join(f"{other} ({', '.join(sorted(names))})" for other, names in sorted(deployments.items()))
    return [
        f"{name} is not deployed in this region, so a deploy creates it in addition to {others}. If you renamed it, "
        "the old deployment keeps its nodes, costs and data: restore its name, then run `python -m stacks destroy`"
    ]


def _described(client: Any, name: str) -> Mapping[str, Any] | None:
    try:
        stacks = client.describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":  # the stack does not exist
            return None
        raise
    described: Mapping[str, Any] = stacks[0]
    return described


def _state_problem(name: str, state: str) -> Problem | None:
    if state in REMEDIES:
        rule = f"failed ({state}), so the effects of a deploy cannot be determined"
        return Problem("stack", name, rule, REMEDIES[state].format(name=name))
    if state.endswith("_IN_PROGRESS"):
        remedy = f"wait; `aws cloudformation describe-stacks --stack-name {name}` shows the status"
        return Problem("stack", name, f"is being changed ({state})", remedy)
    return None


def _template(body: Any) -> Mapping[str, Any] | None:
    """Return the template from boto3's response (a mapping or the original text), or None if it is invalid."""
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except ValueError:
            try:
                body = yaml.safe_load(body)
            except yaml.YAMLError:  # short-form functions, which the CDK does not use
                return None
    return body if isinstance(body, Mapping) else None
