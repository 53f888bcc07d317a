"""Deployed templates from CloudFormation, and the message for each kind of failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from stacks.changes.templates.deployed import deployed
from stacks.changes.templates.template_set import StackTemplate
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError
from stacks.loading import read
from tests.stacks.conftest import ROOT

ACCOUNT = "123456789012"
TEMPLATE = {"Resources": {"Run": {"Type": "AWS::SSM::Parameter"}}}
WANTED = {name: StackTemplate(name, f"minimal-{name}", TEMPLATE) for name in ("NetworkStack", "TrainingStack")}


class Account:
    """A fake STS and CloudFormation of an account with these stacks."""

    def __init__(self, stacks: Mapping[str, tuple[str, Any]], fault: Exception | None = None) -> None:
        self._stacks = stacks
        self._fault = fault

    def __call__(self, service: str) -> Account:
        return self

    def get_caller_identity(self) -> dict[str, str]:
        if self._fault is not None:
            raise self._fault
        return {"Account": ACCOUNT}

    def get_paginator(self, name: str) -> Account:
        assert name == "describe_stacks"
        return self

    def paginate(self) -> list[dict[str, Any]]:
        stacks = [
            {"StackName": name, "Tags": [{"Key": "trainstack:deployment", "Value": name.rsplit("-", 1)[0]}]}
            for name in self._stacks
        ]
        return [{"Stacks": [{"StackName": "CDKToolkit", "Tags": []}]}, {"Stacks": stacks}]

    def describe_stacks(self, *, StackName: str) -> dict[str, Any]:  # noqa: N803
        if StackName not in self._stacks:
            raise error("ValidationError", f"Stack with id {StackName} does not exist")
        state, _ = self._stacks[StackName]
        return {"Stacks": [{"StackName": StackName, "StackStatus": state, "EnableTerminationProtection": True}]}

    def get_template(self, *, StackName: str) -> dict[str, Any]:  # noqa: N803
        return {"TemplateBody": self._stacks[StackName][1]}


def error(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "DescribeStacks")


@pytest.fixture
def config() -> DeploymentConfig:
    return read(ROOT / "config" / "minimal.yaml")


@pytest.mark.parametrize("body", [TEMPLATE, json.dumps(TEMPLATE), yaml.safe_dump(TEMPLATE)])
def test_template_is_readable_in_each_form(config: DeploymentConfig, body: Any) -> None:
    found, notes = deployed(config, WANTED, Account({"minimal-TrainingStack": ("UPDATE_COMPLETE", body)}))
    assert found["TrainingStack"].template == TEMPLATE
    assert found["TrainingStack"].is_protected
    assert found["TrainingStack"].environment == f"aws://{ACCOUNT}/us-east-1"
    assert notes == ["not deployed yet: minimal-NetworkStack"]


@pytest.mark.parametrize("state", ["REVIEW_IN_PROGRESS", "DELETE_COMPLETE"])
def test_stack_without_resources_counts_as_missing(config: DeploymentConfig, state: str) -> None:
    found, notes = deployed(config, WANTED, Account({"minimal-TrainingStack": (state, TEMPLATE)}))
    assert found == {}
    assert "minimal-TrainingStack" in notes[-1]


def test_failed_first_deploy_adds_a_note(config: DeploymentConfig) -> None:
    found, notes = deployed(config, WANTED, Account({"minimal-TrainingStack": ("ROLLBACK_COMPLETE", TEMPLATE)}))
    assert found == {}
    assert "`make deploy` and `python -m stacks deliver deploy` delete and recreate the stack" in notes[0]
    assert "`aws cloudformation delete-stack --stack-name minimal-TrainingStack`" in notes[0]  # in a pipeline


def test_renamed_deployment_is_reported_as_a_second_one(config: DeploymentConfig) -> None:
    others = {"old-TrainingStack": ("CREATE_COMPLETE", TEMPLATE), "old-StorageStack": ("CREATE_COMPLETE", TEMPLATE)}
    found, notes = deployed(config, WANTED, Account(others))
    assert found == {}
    assert "a deploy creates it in addition to old (old-StorageStack, old-TrainingStack)" in notes[-1]
    assert "keeps its nodes, costs and data" in notes[-1]
    _, notes = deployed(config, WANTED, Account({**others, "minimal-TrainingStack": ("CREATE_COMPLETE", TEMPLATE)}))
    assert "next to" not in "".join(notes)


INVALID = [
    ("UPDATE_ROLLBACK_FAILED", TEMPLATE, "continue-update-rollback --stack-name minimal-TrainingStack"),
    ("DELETE_FAILED", TEMPLATE, "delete-stack --stack-name minimal-TrainingStack"),
    ("UPDATE_IN_PROGRESS", TEMPLATE, "is being changed"),
    ("CREATE_COMPLETE", {"Resources": {"Website": {"Type": "AWS::S3::Bucket"}}}, "does not belong to Trainstack"),
    ("CREATE_COMPLETE", "Resources: {A: !Ref B}", "does not belong to Trainstack"),
    ("CREATE_COMPLETE", "no template", "does not belong to Trainstack"),
]


@pytest.mark.parametrize(("state", "body", "message"), INVALID)
def test_unusable_stack_raises(config: DeploymentConfig, state: str, body: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        deployed(config, WANTED, Account({"minimal-TrainingStack": (state, body)}))


def test_all_failed_stacks_are_reported_at_once(config: DeploymentConfig) -> None:
    stacks = {stack.name: ("UPDATE_ROLLBACK_FAILED", TEMPLATE) for stack in WANTED.values()}
    with pytest.raises(ConfigError, match="2 problems"):
        deployed(config, WANTED, Account(stacks))


FAULTS = [
    (NoCredentialsError(), "AWS_PROFILE"),
    (error("AccessDenied", "no"), "grant cloudformation:DescribeStacks"),
    (error("ExpiredToken", "old"), "sign in again"),
    (EndpointConnectionError(endpoint_url="https://x"), "AWS does not respond"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_failed_call_raises_with_a_remedy(config: DeploymentConfig, fault: Exception, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        deployed(config, WANTED, Account({}, fault))


def test_credentials_of_another_account_raise(config: DeploymentConfig) -> None:
    other = config.model_copy(update={"account": "999999999999"})
    with pytest.raises(ConfigError, match=f"credentials belong to account {ACCOUNT}"):
        deployed(other, WANTED, Account({}))
