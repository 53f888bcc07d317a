"""Creates stacks with outputs like those of a deployment."""

from __future__ import annotations

import json
from typing import Any

TOPIC = {"Topic": {"Type": "AWS::SNS::Topic"}}


def create_stack(cloudformation: Any, name: str, outputs: dict[str, str], resources: dict[str, Any] = TOPIC) -> None:
    """Create a stack and wait until it is complete."""
    template: dict[str, Any] = {"Resources": resources}
    if outputs:
        template["Outputs"] = {key: {"Value": value} for key, value in outputs.items()}
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template))
    cloudformation.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
