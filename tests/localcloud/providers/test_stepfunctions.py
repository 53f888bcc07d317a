"""State machines as CloudFormation resources."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3

Lifecycle = Callable[..., None]


def definition(state: str) -> str:
    return json.dumps({"StartAt": state, "States": {state: {"Type": "Succeed"}}})


def test_state_machine(lifecycle: Lifecycle, world: Any) -> None:
    states = boto3.client("stepfunctions")

    def described(arn: str) -> tuple[str, str]:
        found = states.describe_state_machine(stateMachineArn=arn)
        return next(iter(json.loads(found["definition"])["States"])), found["roleArn"]

    def tags(arn: str) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in states.list_tags_for_resource(resourceArn=arn)["tags"]}

    lifecycle(
        "AWS::StepFunctions::StateMachine",
        {"StateMachineName": "pipeline", "DefinitionString": definition("A"), "RoleArn": world.role_arn()},
        ({"DefinitionString": definition("B")}, described, ("B", world.role_arn())),
        ({"RoleArn": world.role_arn(1)}, described, ("B", world.role_arn(1))),
        ref=r"arn:aws:states:us-east-1:123456789012:stateMachine:pipeline",
        tags=tags,
        unchanged={"Tags": "checked at creation; the base class sets changed tags"},
    )
