"""Runs ParallelCluster's schema and validators on a configuration, in ParallelCluster's own environment.

Reads a JSON object from standard input: {"configuration": YAML text, "instance_types": {name: DescribeInstanceTypes
item}}. Prints {"ran": [...], "needs_aws": [...], "failures": [[level, validator, message], ...]}. Validators that call
an AWS API other than DescribeInstanceTypes cannot run, and are listed as `needs_aws`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import yaml

os.environ["AWS_DEFAULT_REGION"] = "us-east-1"

from marshmallow import ValidationError  # noqa: E402
from pcluster.aws import aws_api  # noqa: E402
from pcluster.aws.aws_resources import InstanceTypeInfo  # noqa: E402
from pcluster.config.common import Resource  # noqa: E402
from pcluster.schemas.cluster_schema import ClusterSchema  # noqa: E402


class NeedsAws(Exception):
    """A validator calls an AWS API."""


class Ec2:
    """The calls about instance types. Every other call raises NeedsAws."""

    def __init__(self, types: dict[str, Any]) -> None:
        self._types = types

    def get_instance_type_info(self, instance_type: str) -> InstanceTypeInfo:
        if instance_type not in self._types:
            raise NeedsAws(instance_type)
        return InstanceTypeInfo(self._types[instance_type])

    def list_instance_types(self) -> list[str]:
        return list(self._types)

    def describe_capacity_reservations(self, identifiers: list[str]) -> list[Any]:
        if identifiers:
            raise NeedsAws("describe_capacity_reservations")
        return []

    def get_subnets_az_mapping(self, subnet_ids: list[str]) -> dict[str, str]:
        return dict.fromkeys(subnet_ids, "us-east-1a")

    def get_subnet_avail_zone(self, _: str) -> str:
        return "us-east-1a"

    def get_subnet_vpc(self, _: str) -> str:
        return "vpc-0123456789abcdef0"

    def get_official_image_id(self, *_: Any, **__: Any) -> str:
        return "ami-0123456789abcdef0"

    def __getattr__(self, name: str) -> Any:
        raise NeedsAws(name)


class Api:
    """The AWS API without AWS."""

    def __init__(self, types: dict[str, Any]) -> None:
        self.ec2, self.aws_region = Ec2(types), os.environ["AWS_DEFAULT_REGION"]

    def __getattr__(self, name: str) -> Any:
        raise NeedsAws(name)


def check(text: str, types: dict[str, Any]) -> dict[str, Any]:
    """Return the results for a configuration."""
    api = Api(types)
    aws_api.AWSApi.instance = staticmethod(lambda: api)
    found: dict[str, Any] = {"ran": [], "needs_aws": [], "failures": []}
    try:
        cluster = ClusterSchema(cluster_name="test").load(yaml.safe_load(text))
    except ValidationError as error:
        return {**found, "failures": [["ERROR", "Schema", str(error.messages)]]}

    def execute(validator_class: Any, arguments: dict[str, Any], suppressors: Any, run: Any) -> Any:
        validator, name = validator_class(), validator_class.__name__
        try:
            if hasattr(validator, "execute_async"):
                results = asyncio.new_event_loop().run_until_complete(validator.execute_async(**arguments))
            else:
                results = validator.execute(**arguments)
        except NeedsAws:
            found["needs_aws"].append(name)
            return []
        if any("Unable to locate credentials" in each.message for each in results or []):
            found["needs_aws"].append(name)
            return []
        found["ran"].append(name)
        found["failures"] += [[each.level.name, name, each.message] for each in results or []]
        return []

    Resource._validator_execute = staticmethod(execute)
    try:
        cluster.validate()
    except NeedsAws as error:
        found["needs_aws"].append(f"registration: {error}")
    return found


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(check(given["configuration"], given["instance_types"])))
