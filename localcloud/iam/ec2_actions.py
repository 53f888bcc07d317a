"""Determines the permissions that EC2 calls require to use or create resources, pass roles and set tags.

Source: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html (2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from localcloud.api import Call
from localcloud.iam.policy import Access
from localcloud.iam.stored import launch_template, profile_role

# Resource types by ID prefix.
RESOURCE_TYPES: Mapping[str, str] = {
    "acl": "network-acl",
    "ami": "image",
    "cr": "capacity-reservation",
    "dopt": "dhcp-options",
    "eipalloc": "elastic-ip",
    "eni": "network-interface",
    "fl": "vpc-flow-log",
    "fleet": "fleet",
    "i": "instance",
    "igw": "internet-gateway",
    "key": "key-pair",
    "lt": "launch-template",
    "nat": "natgateway",
    "pg": "placement-group",
    "pl": "prefix-list",
    "rtb": "route-table",
    "sfr": "spot-fleet-request",
    "sg": "security-group",
    "sgr": "security-group-rule",
    "sir": "spot-instances-request",
    "snap": "snapshot",
    "subnet": "subnet",
    "vol": "volume",
    "vpc": "vpc",
    "vpce": "vpc-endpoint",
}
RESOURCE_ID = re.compile(r"^([a-z]+)-[0-9a-f-]+$")
# Types of created resources, for operations whose names do not contain the type.
CREATED_TYPES: Mapping[str, str] = {
    "CreateFlowLogs": "vpc-flow-log",
    "CreateImage": "image",
    "CreateInterruptibleCapacityReservationAllocation": "",
    "CreateFleet": "fleet",
    "CreateLaunchTemplateVersion": "",
    "CreateNatGateway": "natgateway",
    "CreateRoute": "",
    "CreateTags": "",
    "AllocateAddress": "elastic-ip",
    "RequestSpotFleet": "spot-fleet-request",
    "RequestSpotInstances": "spot-instances-request",
}


def ec2_accesses(call: Call) -> list[Access]:
    """Return the actions and resources that an EC2 call requires."""
    action = f"ec2:{call.operation}"
    if call.operation.startswith("Describe"):
        return [Access(action, "*", {})]
    if call.operation in ("RunInstances", "CreateFleet", "RequestSpotFleet"):
        return _launch(call)
    resources = [_arn(call, kind, name) for kind, name in _named(call.parameters)]
    if call.operation == "DeletePlacementGroup":
        resources.append(_arn(call, "placement-group", str(call.parameters.get("GroupName"))))
    if created := _created_type(call.operation):
        name = str(call.parameters.get("GroupName")) if created == "placement-group" else "*"
        resources.append(_arn(call, created, name))
    found = [Access(action, resource, _context_of(resource)) for resource in resources or [_arn(call, "*", "*")]]
    if call.operation.startswith("Create"):
        found += _tagging(call)
    if call.parameters.get("DeliverLogsPermissionArn"):
        passed = {"iam:passedtoservice": ["vpc-flow-logs.amazonaws.com"]}
        found.append(Access("iam:PassRole", str(call.parameters["DeliverLogsPermissionArn"]), passed))
    return found


def _context_of(resource: str) -> dict[str, list[str]]:
    """Return the condition keys that can be derived from a resource's ARN."""
    kind, _, name = resource.rpartition(":")[2].partition("/")
    return {"ec2:instanceid": [name]} if kind == "instance" else {}


def template_accesses(call: Call, specification: Mapping[str, Any]) -> list[Access]:
    """Return the permissions that a service requires to launch instances from a template, including iam:PassRole."""
    template_id, data = launch_template(call.region, specification)
    found = [Access("ec2:RunInstances", _arn(call, "instance", "*"), {})]
    if template_id is not None:
        found.append(Access("ec2:RunInstances", _arn(call, "launch-template", template_id), {}))
    return found + _passed(data.get("IamInstanceProfile"))


def _launch(call: Call) -> list[Access]:
    """Return ec2:RunInstances for all resources that each launch configuration uses or creates."""
    p = call.parameters.get("SpotFleetRequestConfig", call.parameters)
    ways: list[Mapping[str, Any]] = [
        {**override, "LaunchTemplate": one.get("LaunchTemplateSpecification")}
        for one in p.get("LaunchTemplateConfigs", [])
        for override in one.get("Overrides") or [{}]
    ]
    found = [access for way in ways or [p] for access in _launch_of(call, way)]
    if call.operation != "RunInstances":
        found.append(Access(f"ec2:{call.operation}", _arn(call, CREATED_TYPES[call.operation], "*"), {}))
    if p.get("IamFleetRole"):
        passed = {"iam:passedtoservice": ["spotfleet.amazonaws.com"]}
        found.append(Access("iam:PassRole", str(p["IamFleetRole"]), passed))
    unique = {(one.action, one.resource, str(one.context)): one for one in [*found, *_tagging(call)]}
    return sorted(unique.values(), key=lambda one: one.action == "iam:PassRole")


def _launch_of(call: Call, p: Mapping[str, Any]) -> list[Access]:
    specification = p.get("LaunchTemplate") or {}
    template_id, data = launch_template(call.region, specification) if specification else (None, {})
    merged = {**data, **p}
    context = {"ec2:instancetype": [str(merged["InstanceType"])]} if merged.get("InstanceType") else {}
    used = [("instance", "*"), ("volume", "*"), ("network-interface", "*")]
    if template_id is not None:
        used.append(("launch-template", template_id))
    if str(merged.get("ImageId", "")).startswith("ami-"):
        used.append(("image", str(merged["ImageId"])))
    interfaces = merged.get("NetworkInterfaces") or [{}]
    subnets = str(merged.get("SubnetId") or interfaces[0].get("SubnetId") or "")
    used += [("subnet", one.strip()) for one in subnets.split(",") if one.strip()]
    groups = merged.get("SecurityGroupIds") or interfaces[0].get("Groups") or []
    used += [("security-group", str(group)) for group in groups]
    placement = (merged.get("Placement") or {}).get("GroupName")
    if placement:
        used.append(("placement-group", str(placement)))
    target = (merged.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    if target.get("CapacityReservationId"):
        used.append(("capacity-reservation", str(target["CapacityReservationId"])))
    found = [Access("ec2:RunInstances", _arn(call, kind, name), context) for kind, name in used]
    return found + _passed(merged.get("IamInstanceProfile"))


def _passed(profile: Mapping[str, Any] | None) -> list[Access]:
    role = profile_role(profile) if profile else None
    return [Access("iam:PassRole", role, {"iam:passedtoservice": ["ec2.amazonaws.com"]})] if role else []


def _tagging(call: Call) -> list[Access]:
    """Return ec2:CreateTags for the resources that the call tags when it creates them."""
    p = call.parameters.get("SpotFleetRequestConfig", call.parameters)
    kinds = [str(one["ResourceType"]) for one in p.get("TagSpecifications", []) if one.get("Tags")]
    context = {"ec2:createaction": [call.operation]}
    return [Access("ec2:CreateTags", _arn(call, kind, "*"), context) for kind in dict.fromkeys(kinds)]


def _named(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the type and ID of each resource in a call's top-level parameters."""
    seen: set[str] = set()
    for name, value in parameters.items():
        if not name.endswith(("Id", "Ids", "Resources")):
            continue  # user-defined names can look like IDs
        for one in value if isinstance(value, list) else [value]:
            match = RESOURCE_ID.match(one) if isinstance(one, str) else None
            if match is not None and match.group(1) in RESOURCE_TYPES and one not in seen:
                seen.add(one)
                yield RESOURCE_TYPES[match.group(1)], one


def _created_type(operation: str) -> str:
    if operation in CREATED_TYPES:
        return CREATED_TYPES[operation]
    if not operation.startswith("Create"):
        return ""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", operation.removeprefix("Create")).lower()


def _arn(call: Call, kind: str, name: str) -> str:
    account = "" if kind in ("image", "snapshot") else call.account
    return f"arn:aws:ec2:{call.region}:{account}:{kind}/{name}"
