"""Dry runs of RunInstances with the launch template data of the synthesised stack, a type at a time.

What the template takes from resources of the deployment is filled in from the deployed stacks; before the first deploy
it is left out, and said so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from stacks.capacity_plan import is_spot, layouts
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem

if TYPE_CHECKING:
    from stacks.account import ClientOf

ROOT = Path(__file__).resolve().parents[2]
Templates = Mapping[str, Mapping[str, Any]]
"""Templates by construct id, such as `TrainingStack`."""
ADVICE: Mapping[str, str] = {
    "InstanceLimitExceeded": "ask for a larger quota in Service Quotas",
    "VcpuLimitExceeded": "ask for a larger vCPU quota in Service Quotas",
    "MaxSpotInstanceCountExceeded": "ask for a larger spot quota in Service Quotas",
    "InsufficientInstanceCapacity": "list more types and zones, or try later",
    "InsufficientFreeAddressesInSubnet": "use a larger subnet",
    "SpotMaxPriceTooLow": "raise capacity.max_price_usd, or drop it",
    "InvalidAMIID.NotFound": "the image is not in this region: correct node.ami",
    "Unsupported": "the type is not offered in this zone, or not with these options: drop it or change the zones",
    "InvalidParameterCombination": "see the message: the type does not go with these options",
    "InvalidBlockDeviceMapping": "see the message: node.root_volume or node.root_device do not fit the image",
}
# Not refusals of the launch: the account has no default network to try it in before the first deploy.
NO_NETWORK_YET = ("VPCIdNotSpecified", "MissingInput", "DefaultSubnetDoesNotExistInVpc")


class _NotDeployed(Exception):
    """A value of a resource that is not there yet."""


def synthesise(path: Path) -> Templates:
    """Run the CDK app on a deployment file, as a deploy does; return its templates.

    Raises:
        ConfigError: The app refused.
    """
    context = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    with tempfile.TemporaryDirectory() as out:
        settings = {"CDK_OUTDIR": out, "CDK_CONTEXT_JSON": json.dumps({**context, "config": str(path.resolve())})}
        done = subprocess.run(
            [sys.executable, "app.py"], cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True
        )
        if done.returncode:
            tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
            problem = Problem("the file", str(path), f"cannot be synthesised: {tail[0]}", "see `make synth`")
            raise ConfigError(str(path), [problem])
        found = sorted(Path(out).glob("*.template.json"))
        return {one.name.removesuffix(".template.json"): json.loads(one.read_text(encoding="utf-8")) for one in found}


@dataclass
class _Values:
    """Values of a template's references: physical ids, exports, parameters."""

    config: DeploymentConfig
    template: Mapping[str, Any]
    physical: Mapping[str, str]
    exports: Mapping[str, str]
    missing: set[str] = field(default_factory=set)

    def of(self, value: Any) -> Any:
        """Return a value without intrinsics; keys whose value is not known are left out and noted.

        Raises:
            _NotDeployed: The value itself is not known.
        """
        if isinstance(value, list):
            return [self.of(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        if len(value) == 1:
            ((name, argument),) = value.items()
            if name == "Ref" or name.startswith("Fn::"):
                return self._intrinsic(name, argument)
        found: dict[str, Any] = {}
        for key, item in value.items():
            try:
                found[key] = self.of(item)
            except _NotDeployed:
                self.missing.add(key)
        return found

    def _intrinsic(self, name: str, argument: Any) -> Any:
        if name == "Ref":
            return self._reference(argument)
        if name == "Fn::Base64":
            return self._text(argument)  # the SDK encodes user data itself
        if name == "Fn::Join":
            separator, items = argument
            return separator.join(self._text(item) for item in items)
        if name == "Fn::ImportValue" and argument in self.exports:
            return self.exports[argument]
        if name == "Fn::GetAtt" and argument[1] in ("GroupId", "KeyId") and argument[0] in self.physical:
            return self.physical[argument[0]]
        raise _NotDeployed(name)

    def _reference(self, name: str) -> str:
        pseudo = {"AWS::Region": self.config.region, "AWS::Partition": "aws", "AWS::URLSuffix": "amazonaws.com"}
        if name in pseudo:
            return pseudo[name]
        parameter = self.template.get("Parameters", {}).get(name)
        if parameter is not None and str(parameter["Type"]).startswith("AWS::SSM::Parameter::Value"):
            return f"resolve:ssm:{parameter['Default']}"
        if name in self.physical:
            return self.physical[name]
        raise _NotDeployed(name)

    def _text(self, value: Any) -> str:
        """Return a text of about the right size: user data is not looked into by EC2."""
        try:
            return str(self.of(value))
        except _NotDeployed:
            return "not-deployed-yet"


def dry_runs(config: DeploymentConfig, clients: ClientOf, templates: Templates) -> Iterator[Problem]:
    """Try the launch of every type, without starting one."""
    template = templates["TrainingStack"]
    physical = _physical(clients, f"{config.name}-TrainingStack")
    values = _Values(config, template, physical, _exports(clients))
    launches = [
        one["Properties"]["LaunchTemplateData"]
        for one in template["Resources"].values()
        if one["Type"] == "AWS::EC2::LaunchTemplate"
    ]
    subnet = _subnet(config, clients)
    for data, names in zip(launches, layouts(config).values(), strict=True):
        asked = _request(config, values, data, subnet)
        for name in names:
            yield from _tried(clients, name, asked)
    if values.missing or subnet is None:
        left_out = sorted(values.missing | ({"SubnetId"} if subnet is None else set()))
        rule = f"the dry run went without {', '.join(left_out)}, which the deployment has yet to make"
        yield Problem("--aws", "not deployed", rule, "ask again after the first deploy", "warning")


def _request(config: DeploymentConfig, values: _Values, data: Mapping[str, Any], subnet: str | None) -> dict[str, Any]:
    asked: dict[str, Any] = values.of(data)
    profile = asked.get("IamInstanceProfile")
    if profile is not None and not profile:
        del asked["IamInstanceProfile"]
        role = data["IamInstanceProfile"].get("Arn", {}).get("Fn::GetAtt", [None])[0]
        if role in values.physical:
            values.missing.discard("Arn")
            asked["IamInstanceProfile"] = {"Name": values.physical[role]}
    if subnet is not None:
        for interface in asked.get("NetworkInterfaces", []):
            interface["SubnetId"] = subnet
    if is_spot(config) and config.capacity.on_demand_base < config.capacity.nodes:
        limit = config.capacity.max_price_usd
        options = {} if limit is None else {"SpotOptions": {"MaxPrice": str(limit)}}
        asked["InstanceMarketOptions"] = {"MarketType": "spot", **options}
    return asked | {"MinCount": 1, "MaxCount": config.capacity.nodes, "DryRun": True}


def _tried(clients: ClientOf, name: str, asked: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        clients("ec2").run_instances(**{**asked, "InstanceType": name})
    except ClientError as error:
        code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
        if code == "DryRunOperation":
            return
        if code == "UnauthorizedOperation":
            raise
        severity = "warning" if code in NO_NETWORK_YET else "error"
        advice = "deploy the NetworkStack first" if code in NO_NETWORK_YET else ADVICE.get(code, "see the message")
        rule = f"a launch would be refused: {code}: {message}"
        yield Problem("capacity.instance_types", name, rule, advice, severity)  # type: ignore[arg-type]


def _physical(clients: ClientOf, stack: str) -> dict[str, str]:
    """Return the physical ids of a deployed stack's resources; none when it is not deployed."""
    try:
        answer = clients("cloudformation").describe_stack_resources(StackName=stack)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":  # there is no such stack
            return {}
        raise
    return {
        one["LogicalResourceId"]: one["PhysicalResourceId"]
        for one in answer["StackResources"]
        if one.get("PhysicalResourceId")
    }


def _exports(clients: ClientOf) -> dict[str, str]:
    pages = clients("cloudformation").get_paginator("list_exports").paginate()
    return {one["Name"]: one["Value"] for page in pages for one in page["Exports"]}


def _subnet(config: DeploymentConfig, clients: ClientOf) -> str | None:
    """Return a subnet of the nodes, the first that is tried; None before the network is deployed."""
    if config.network.existing is not None:
        return config.network.existing.subnets[0].id
    found = clients("ec2").describe_subnets(
        Filters=[
            {"Name": "tag:aws:cloudformation:stack-name", "Values": [f"{config.name}-NetworkStack"]},
            {"Name": "availability-zone", "Values": [f"{config.region}{config.network.zones[0]}"]},
        ]
    )["Subnets"]
    return str(found[0]["SubnetId"]) if found else None
