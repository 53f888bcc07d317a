"""What CloudFormation holds, and every way in which it cannot be told, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from stacks.changes.assembly import StackTemplate
from stacks.changes.deployed import deployed
from stacks.config import DeploymentConfig, read
from stacks.errors import ConfigError
from tests.stacks.conftest import ROOT

ACCOUNT = "123456789012"
TEMPLATE = {"Resources": {"Run": {"Type": "AWS::SSM::Parameter"}}}
WANTED = {name: StackTemplate(name, f"minimal-{name}", TEMPLATE) for name in ("NetworkStack", "TrainingStack")}


class Account:
    """STS and CloudFormation of an account with these stacks."""

    def __init__(self, stacks: Mapping[str, tuple[str, Any]], fault: Exception | None = None) -> None:
        self._stacks = stacks
        self._fault = fault

    def __call__(self, service: str) -> Account:
        return self

    def get_caller_identity(self) -> dict[str, str]:
        if self._fault is not None:
            raise self._fault
        return {"Account": ACCOUNT}

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
def test_a_template_is_read_as_it_was_deployed(config: DeploymentConfig, body: Any) -> None:
    found, notes = deployed(config, WANTED, Account({"minimal-TrainingStack": ("UPDATE_COMPLETE", body)}))
    assert found["TrainingStack"].template == TEMPLATE
    assert found["TrainingStack"].is_protected
    assert found["TrainingStack"].environment == f"aws://{ACCOUNT}/us-east-1"
    assert notes == ["not deployed yet: minimal-NetworkStack"]


@pytest.mark.parametrize("state", ["REVIEW_IN_PROGRESS", "DELETE_COMPLETE"])
def test_a_stack_that_was_never_made_is_not_there(config: DeploymentConfig, state: str) -> None:
    found, notes = deployed(config, WANTED, Account({"minimal-TrainingStack": (state, TEMPLATE)}))
    assert found == {}
    assert "minimal-TrainingStack" in notes[-1]


def test_a_first_deploy_that_failed_begins_anew(config: DeploymentConfig) -> None:
    found, notes = deployed(config, WANTED, Account({"minimal-TrainingStack": ("ROLLBACK_COMPLETE", TEMPLATE)}))
    assert found == {}
    assert "begins anew" in notes[0]


REFUSED = [
    ("UPDATE_ROLLBACK_FAILED", TEMPLATE, "continue-update-rollback --stack-name minimal-TrainingStack"),
    ("DELETE_FAILED", TEMPLATE, "delete-stack --stack-name minimal-TrainingStack"),
    ("UPDATE_IN_PROGRESS", TEMPLATE, "is being changed"),
    ("CREATE_COMPLETE", {"Resources": {"Website": {"Type": "AWS::S3::Bucket"}}}, "not Trainstack's"),
    ("CREATE_COMPLETE", "Resources: {A: !Ref B}", "not Trainstack's"),
    ("CREATE_COMPLETE", "no template", "not Trainstack's"),
]


@pytest.mark.parametrize(("state", "body", "told"), REFUSED)
def test_a_stack_of_which_nothing_can_be_told(config: DeploymentConfig, state: str, body: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        deployed(config, WANTED, Account({"minimal-TrainingStack": (state, body)}))


def test_all_stacks_that_failed_are_told_at_once(config: DeploymentConfig) -> None:
    stacks = {stack.name: ("UPDATE_ROLLBACK_FAILED", TEMPLATE) for stack in WANTED.values()}
    with pytest.raises(ConfigError, match="2 problems"):
        deployed(config, WANTED, Account(stacks))


FAULTS = [
    (NoCredentialsError(), "AWS_PROFILE"),
    (error("AccessDenied", "no"), "grant cloudformation:DescribeStacks"),
    (error("ExpiredToken", "old"), "sign in again"),
    (EndpointConnectionError(endpoint_url="https://x"), "AWS does not answer"),
]


@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_an_account_that_does_not_answer(config: DeploymentConfig, fault: Exception, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        deployed(config, WANTED, Account({}, fault))


def test_credentials_of_another_account(config: DeploymentConfig) -> None:
    other = config.model_copy(update={"account": "999999999999"})
    with pytest.raises(ConfigError, match=f"credentials are of account {ACCOUNT}"):
        deployed(other, WANTED, Account({}))
