"""Network access that a deploy broadens or narrows: security groups, routes, endpoints, public access, IMDS."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from stacks.changes.effects.iam import compare
from stacks.changes.effects.iam_permissions import ALL_PERMISSIONS, Permission, permissions_of
from stacks.changes.findings import Direction, Finding
from stacks.changes.templates.references import is_intrinsic
from stacks.changes.templates.template_set import PropertyPath, TemplateSet
from stacks.changes.templates.values import mapping, mappings, number, text_of
from stacks.changes.updates.resources import ResourceChange

ANY_PROTOCOL = "-1"
GROUP = "AWS::EC2::SecurityGroup"
RULES: Mapping[str, str] = {
    "AWS::EC2::SecurityGroupIngress": "SecurityGroupIngress",
    "AWS::EC2::SecurityGroupEgress": "SecurityGroupEgress",
}
CONNECTIONS: Mapping[str, str] = {
    "AWS::EC2::InternetGateway": "an internet gateway",
    "AWS::EC2::NatGateway": "a NAT gateway",
    "AWS::EC2::EIP": "a public IP address",
    "AWS::EC2::EgressOnlyInternetGateway": "an egress-only internet gateway",
    "AWS::EC2::Route": "a route",
    "AWS::EC2::VPCPeeringConnection": "a VPC peering connection",
    "AWS::EC2::TransitGatewayAttachment": "a transit gateway attachment",
    "AWS::EC2::VPNGateway": "a VPN gateway",
    "AWS::Lambda::Url": "a public function URL",
}
"""Types that connect the network to other networks or are publicly reachable."""
PEERS = (
    "CidrIp", "CidrIpv6", "SourceSecurityGroupId", "DestinationSecurityGroupId", "SourcePrefixListId",
    "DestinationPrefixListId", "SourceSecurityGroupName",
)  # fmt: skip
UNREADABLE = "rules that cannot be read:"
"""The protocol of rules that contain unknown values."""


@dataclass(frozen=True)
class Flow:
    """The traffic that a security group rule allows. `ports` is None for all ports."""

    side: str
    protocol: str
    ports: tuple[int, int] | None
    peer: str

    def __str__(self) -> str:
        """Return the traffic as text."""
        protocol = "all traffic" if self.protocol == ANY_PROTOCOL else self.protocol
        ports = "" if self.ports is None else f" {self.ports[0]}-{self.ports[1]}"
        return f"{protocol}{ports} {'from' if self.side.endswith('Ingress') else 'to'} {self.peer}"

    def covers(self, other: Flow) -> bool:
        """Return True if this rule allows all traffic that another rule allows."""
        if self == other:
            return True
        if UNREADABLE in (self.protocol, other.protocol):
            return False
        if self.side != other.side or self.protocol not in (ANY_PROTOCOL, other.protocol):
            return False
        if self.ports is not None and (
            other.ports is None or not self.ports[0] <= other.ports[0] <= other.ports[1] <= self.ports[1]
        ):
            return False
        return self.peer == other.peer or _is_within(other.peer, self.peer)


EVERYWHERE = Flow("SecurityGroupEgress", ANY_PROTOCOL, None, "0.0.0.0/0")
"""The outbound traffic that a security group without outbound rules allows. Source (2026-11):
https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-ec2-securitygroup.html"""


def network_findings(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> list[Finding]:
    """Return the findings about network access."""
    found = [one for change in changes for one in _of_change(change)]
    return found + list(_groups(before, after, changes))


def _finding(change: ResourceChange, direction: Direction, path: PropertyPath, text: str) -> Finding:
    return Finding("network", direction, change.stack, change.logical_id, path, text)


def _of_change(change: ResourceChange) -> Iterator[Finding]:
    connection = CONNECTIONS.get(change.type)
    if connection is not None and change.action in ("added", "removed"):
        is_new = change.action == "added"
        target = change.properties("after" if is_new else "before").get("DestinationCidrBlock")
        name = connection + ("" if target is None else f" to {text_of(target)}")
        yield _finding(change, "broadened" if is_new else "narrowed", (), f"{name} is {change.action}")
    elif change.type == "AWS::EC2::VPCEndpoint":
        yield from _endpoint(change)
    else:
        yield from _settings(change)


def _endpoint(change: ResourceChange) -> Iterator[Finding]:
    if change.action in ("added", "removed"):
        is_new = change.action == "added"
        service = text_of(change.properties("after" if is_new else "before").get("ServiceName", ""))
        text = f"nodes {'can' if is_new else 'can no longer'} reach {service} through an endpoint"
        yield _finding(change, "broadened" if is_new else "narrowed", ("ServiceName",), text)
        return
    old, new = (_endpoint_permissions(change.properties(side)) for side in ("before", "after"))
    for direction, text in compare(old, new):
        yield _finding(change, direction, ("PolicyDocument",), f"endpoint policy: {text}")


def _endpoint_permissions(properties: Mapping[str, Any]) -> list[Permission]:
    return permissions_of(properties["PolicyDocument"]) if "PolicyDocument" in properties else [ALL_PERMISSIONS]


def _settings(change: ResourceChange) -> Iterator[Finding]:
    """Yield changes to settings that open access: public addresses, public buckets, IMDSv1."""
    if change.action == "removed":
        return
    old, new = (list(_open_settings(change.properties(side))) for side in ("before", "after"))
    for path, text in new:
        if (path, text) not in old:
            yield _finding(change, "broadened", path, text)
    for path, text in old if change.before is not None else ():
        if (path, text) not in new:
            yield _finding(change, "narrowed", path, f"no longer true: {text}")
    if change.type == "AWS::S3::Bucket":
        yield from _public_access(change)


def _open_settings(properties: Mapping[str, Any]) -> Iterator[tuple[PropertyPath, str]]:
    if text_of(properties.get("MapPublicIpOnLaunch", "")) == "true":
        yield ("MapPublicIpOnLaunch",), "instances in the subnet get public IP addresses"
    data = properties.get("LaunchTemplateData")
    if not isinstance(data, Mapping):
        return
    where = ("LaunchTemplateData",)
    if any(
        text_of(one.get("AssociatePublicIpAddress", "")) == "true" for one in mappings(data.get("NetworkInterfaces"))
    ):
        yield (*where, "NetworkInterfaces"), "nodes get public IP addresses"
    metadata = mapping(data.get("MetadataOptions"))
    if metadata.get("HttpTokens") != "required":
        yield (
            (*where, "MetadataOptions", "HttpTokens"),
            "the metadata service accepts requests without a token (IMDSv1)",
        )
    if number(metadata.get("HttpPutResponseHopLimit", 1), otherwise=inf) > 1:
        text = "the metadata service accepts requests from containers and routed requests"
        yield (*where, "MetadataOptions", "HttpPutResponseHopLimit"), text


def _public_access(change: ResourceChange) -> Iterator[Finding]:
    path = "PublicAccessBlockConfiguration"
    names = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
    # By default, S3 blocks all four kinds of public access. Source (2026-11):
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-control-block-public-access.html
    old, new = (_blocked(change.properties(side).get(path, {}), names) for side in ("before", "after"))
    for name in names:
        if old[name] and not new[name]:
            yield _finding(change, "broadened", (path, name), f"the bucket can be made public: {name} is off")
        elif new[name] and not old[name]:
            yield _finding(change, "narrowed", (path, name), f"{name} is on")


def _blocked(value: Any, names: Sequence[str]) -> dict[str, bool]:
    """Return whether each kind of public access is blocked. An unknown value is treated as not blocked."""
    is_known = isinstance(value, Mapping) and not is_intrinsic(value)
    return {name: is_known and text_of(value.get(name, "true")) == "true" for name in names}


def _groups(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> Iterator[Finding]:
    """Yield changes to the traffic that each security group allows through its inline and separate rules."""
    touched: dict[tuple[str, str], ResourceChange] = {}
    for change in changes:
        if change.type == GROUP:
            touched.setdefault((change.stack, f"${{{change.logical_id}}}"), change)
        elif change.type in RULES:
            side = change.properties("after" if change.after is not None else "before")
            touched[change.stack, _group_text(side)] = change
    for (stack, group), change in touched.items():
        old, new = _flows(before, stack, group), _flows(after, stack, group)
        for flow in new:
            if not any(one.covers(flow) for one in old):
                yield _finding(change, "broadened", (flow.side,), f"{group} allows {flow}")
        for flow in old:
            if not any(one.covers(flow) for one in new):
                yield _finding(change, "narrowed", (flow.side,), f"{group} no longer allows {flow}")


def _group_text(properties: Mapping[str, Any]) -> str:
    """Return a rule's group as text. A reference to the group and a reference to its id produce the same text."""
    return text_of(properties.get("GroupId", "")).replace(".GroupId}", "}")


def _flows(templates: TemplateSet, stack: str, group: str) -> list[Flow]:
    found = []
    for logical_id, definition in templates[stack].resources.items() if stack in templates else ():
        properties = definition.get("Properties", {})
        if definition["Type"] == GROUP and f"${{{logical_id}}}" == group:
            found += [flow for side in RULES.values() for flow in _inline_flows(side, properties.get(side, []))]
            found += [] if "SecurityGroupEgress" in properties else [EVERYWHERE]
        elif definition["Type"] in RULES and _group_text(properties) == group:
            found += _rule_flows(RULES[definition["Type"]], properties)
    return found


def _inline_flows(side: str, rules: Any) -> Iterator[Flow]:
    for rule in rules if isinstance(rules, list) else [rules]:
        yield from _rule_flows(side, rule)


def _rule_flows(side: str, rule: Any) -> Iterator[Flow]:
    """Yield the traffic that a rule allows: one flow for each peer."""
    ports: tuple[int, int] | None = None
    is_readable = isinstance(rule, Mapping) and not is_intrinsic(rule)
    protocol = text_of(rule.get("IpProtocol", ANY_PROTOCOL)) if is_readable else UNREADABLE
    if is_readable and protocol != ANY_PROTOCOL and "FromPort" in rule:
        first, last = number(rule["FromPort"]), number(rule.get("ToPort", rule["FromPort"]))
        is_readable = first is not None and last is not None
        ports = (int(first or 0), int(last or 0))
    if not is_readable:
        yield Flow(side, UNREADABLE, None, text_of(rule))
        return
    for peer in [text_of(rule[name]) for name in PEERS if name in rule] or ["no peer"]:
        yield Flow(side, protocol, ports, peer.replace(".GroupId}", "}"))


def _is_within(inner: str, outer: str) -> bool:
    try:
        networks = ipaddress.ip_network(inner), ipaddress.ip_network(outer)
    except ValueError:  # a reference or a group
        return False
    first, second = networks
    if isinstance(first, ipaddress.IPv4Network) and isinstance(second, ipaddress.IPv4Network):
        return first.subnet_of(second)
    if isinstance(first, ipaddress.IPv6Network) and isinstance(second, ipaddress.IPv6Network):
        return first.subnet_of(second)
    return False
