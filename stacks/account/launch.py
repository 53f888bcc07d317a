"""Dry runs of RunInstances with the synthesized stack's launch template data, one for each instance type.

References to the deployment's resources are resolved from the deployed stacks. Before the first deploy, they are
omitted with a warning.
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
from typing import Any

from botocore.exceptions import ClientError

from stacks.account.account import Account, ClientOf, Templates
from stacks.capacity.plan import is_spot, layouts
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem

ROOT = Path(__file__).resolve().parents[2]
ADVICE: Mapping[str, str] = {
    "InstanceLimitExceeded": "request a larger quota in Service Quotas",
    "VcpuLimitExceeded": "request a larger vCPU quota in Service Quotas",
    "MaxSpotInstanceCountExceeded": "request a larger spot quota in Service Quotas",
    "InsufficientInstanceCapacity": "list more types and zones, or try again later",
    "InsufficientFreeAddressesInSubnet": "use a larger subnet",
    "SpotMaxPriceTooLow": "raise capacity.max_price_usd, or remove it",
    "InvalidAMIID.NotFound": "the image does not exist in this region: correct node.ami",
    "Unsupported": "the zone does not offer the type with these options: remove the type, or change the zones",
    "InvalidParameterCombination": "see the message: the type does not support these options",
    "InvalidBlockDeviceMapping": "see the message: node.root_volume or node.root_device does not match the image",
}
# These codes do not mean that a real launch would fail. Before the first deploy, the account might not have a default
# VPC for the dry run.
NO_NETWORK_YET = ("VPCIdNotSpecified", "MissingInput", "DefaultSubnetDoesNotExistInVpc")


class _NotDeployed(Exception):
    """The value of a resource that is not deployed yet."""


def synthesise(path: Path) -> Templates:
    """Run the CDK app on a deployment file in the same way as a deploy, and return its templates.

    Raises:
        ConfigError: The synthesis failed.
    """
    context = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    with tempfile.TemporaryDirectory() as out:
        settings = {"CDK_OUTDIR": out, "CDK_CONTEXT_JSON": json.dumps({**context, "config": str(path.resolve())})}
        done = subprocess.run(
            [sys.executable, "app.py"], cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True
        )
        if done.returncode:
            tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
            problem = Problem("the file", str(path), f"cannot be synthesized: {tail[0]}", "see `make synth`")
            raise ConfigError(str(path), [problem])
        found = sorted(Path(out).glob("*.template.json"))
        return {one.name.removesuffix(".template.json"): json.loads(one.read_text(encoding="utf-8")) for one in found}


@dataclass
class _Values:
    """Resolves the references in a template to physical ids, exports and parameters."""

    config: DeploymentConfig
    template: Mapping[str, Any]
    physical: Mapping[str, str]
    exports: Mapping[str, str]
    missing: set[str] = field(default_factory=set)

    def of(self, value: Any) -> Any:
        """Return a value with its intrinsics resolved. Keys with unknown values are omitted and recorded in `missing`.

        Raises:
            _NotDeployed: The value itself is unknown.
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
            return self._text(argument)  # the SDK encodes user data
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
        """Return text of approximately the right size, which is sufficient because EC2 does not parse user data."""
        try:
            return str(self.of(value))
        except _NotDeployed:
            return "not-deployed-yet"


def dry_runs(account: Account) -> Iterator[Problem]:
    """Dry-run a launch of each instance type."""
    config, clients, template = account.config, account.client, account.templates["TrainingStack"]
    values = _Values(config, template, account.deployed("TrainingStack"), _exports(clients))
    launches = [
        one["Properties"]["LaunchTemplateData"]
        for one in template["Resources"].values()
        if one["Type"] == "AWS::EC2::LaunchTemplate"
    ]
    subnet = _subnet(config, clients)
    for data, names in zip(launches, layouts(config).values(), strict=True):
        request = _request(config, values, data, subnet)
        for name in names:
            yield from _dry_run(clients, name, request)
    if values.missing or subnet is None:
        left_out = sorted(values.missing | ({"SubnetId"} if subnet is None else set()))
        rule = f"the dry run omitted {', '.join(left_out)}, which do not exist before the first deploy"
        yield Problem("--aws", "not deployed", rule, "repeat the check after the first deploy", "warning")


def _request(config: DeploymentConfig, values: _Values, data: Mapping[str, Any], subnet: str | None) -> dict[str, Any]:
    request: dict[str, Any] = values.of(data)
    profile = request.get("IamInstanceProfile")
    if profile is not None and not profile:
        del request["IamInstanceProfile"]
        role = data["IamInstanceProfile"].get("Arn", {}).get("Fn::GetAtt", [None])[0]
        if role in values.physical:
            values.missing.discard("Arn")
            request["IamInstanceProfile"] = {"Name": values.physical[role]}
    if subnet is not None:
        for interface in request.get("NetworkInterfaces", []):
            interface["SubnetId"] = subnet
    if is_spot(config) and config.capacity.on_demand_base < config.capacity.nodes:
        limit = config.capacity.max_price_usd
        options = {} if limit is None else {"SpotOptions": {"MaxPrice": str(limit)}}
        request["InstanceMarketOptions"] = {"MarketType": "spot", **options}
    return request | {"MinCount": 1, "MaxCount": config.capacity.nodes, "DryRun": True}


def _dry_run(clients: ClientOf, name: str, request: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        clients("ec2").run_instances(**{**request, "InstanceType": name})
    except ClientError as error:
        code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
        if code == "DryRunOperation":
            return
        if code == "UnauthorizedOperation":
            raise
        severity = "warning" if code in NO_NETWORK_YET else "error"
        advice = "deploy the NetworkStack first" if code in NO_NETWORK_YET else ADVICE.get(code, "see the message")
        rule = f"the launch would fail: {code}: {message}"
        yield Problem("capacity.instance_types", name, rule, advice, severity)  # type: ignore[arg-type]


def _exports(clients: ClientOf) -> dict[str, str]:
    pages = clients("cloudformation").get_paginator("list_exports").paginate()
    return {one["Name"]: one["Value"] for page in pages for one in page["Exports"]}


def _subnet(config: DeploymentConfig, clients: ClientOf) -> str | None:
    """Return the first subnet that nodes would launch in, or None before the network is deployed."""
    if config.network.existing is not None:
        return config.network.existing.subnets[0].id
    found = clients("ec2").describe_subnets(
        Filters=[
            {"Name": "tag:aws:cloudformation:stack-name", "Values": [f"{config.name}-NetworkStack"]},
            {"Name": "availability-zone", "Values": [f"{config.region}{config.network.zones[0]}"]},
        ]
    )["Subnets"]
    return str(found[0]["SubnetId"]) if found else None
