"""How far nodes and data can be reached, and what they can reach: security groups, ways out, endpoints, metadata."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stacks.changes.assembly import Assembly
from stacks.changes.findings import Direction, Finding
from stacks.changes.iam import compared
from stacks.changes.resources import ResourceChange
from stacks.changes.schemas import PropertyPath
from stacks.changes.statements import Right, rights_of
from stacks.changes.texts import text_of

ANY_PROTOCOL = "-1"
GROUP = "AWS::EC2::SecurityGroup"
RULES: Mapping[str, str] = {
    "AWS::EC2::SecurityGroupIngress": "SecurityGroupIngress",
    "AWS::EC2::SecurityGroupEgress": "SecurityGroupEgress",
}
WAYS_OUT: Mapping[str, str] = {
    "AWS::EC2::InternetGateway": "an internet gateway",
    "AWS::EC2::NatGateway": "a NAT gateway",
    "AWS::EC2::EIP": "a public address",
    "AWS::EC2::EgressOnlyInternetGateway": "a gateway to the internet",
    "AWS::EC2::Route": "a route",
    "AWS::EC2::VPCPeeringConnection": "a connection to another VPC",
    "AWS::EC2::TransitGatewayAttachment": "a connection to a transit gateway",
    "AWS::EC2::VPNGateway": "a VPN gateway",
    "AWS::Lambda::Url": "a public address of a function",
}
ALL_RIGHTS = [Right("Allow", "*", "*", "*")]
"""What an endpoint without a policy lets through."""


@dataclass(frozen=True)
class Flow:
    """What a rule of a security group admits; ports are None when all of them are meant."""

    side: str
    protocol: str
    ports: tuple[int, int] | None
    peer: str

    def __str__(self) -> str:
        """Return it in words."""
        protocol = "all traffic" if self.protocol == ANY_PROTOCOL else self.protocol
        ports = "" if self.ports is None else f" {self.ports[0]}-{self.ports[1]}"
        return f"{protocol}{ports} {'from' if self.side.endswith('Ingress') else 'to'} {self.peer}"

    def covers(self, other: Flow) -> bool:
        """Tell whether all that another rule admits is admitted by this one."""
        if self.side != other.side or self.protocol not in (ANY_PROTOCOL, other.protocol):
            return False
        if self.ports is not None and (
            other.ports is None or not self.ports[0] <= other.ports[0] <= other.ports[1] <= self.ports[1]
        ):
            return False
        return self.peer == other.peer or _is_within(other.peer, self.peer)


EVERYWHERE = Flow("SecurityGroupEgress", ANY_PROTOCOL, None, "0.0.0.0/0")
"""What a group without outbound rules of its own lets out. Source (2026-11):
https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-ec2-securitygroup.html"""


def network_findings(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> list[Finding]:
    """Return what becomes reachable, and what no longer is."""
    found = [one for change in changes for one in _of_change(change)]
    return found + list(_groups(before, after, changes))


def _finding(change: ResourceChange, direction: Direction, path: PropertyPath, text: str) -> Finding:
    return Finding("network", direction, change.stack, change.logical_id, path, text)


def _of_change(change: ResourceChange) -> Iterator[Finding]:
    way_out = WAYS_OUT.get(change.type)
    if way_out is not None and change.action in ("added", "removed"):
        is_new = change.action == "added"
        target = change.properties("after" if is_new else "before").get("DestinationCidrBlock")
        told = way_out + ("" if target is None else f" to {text_of(target)}")
        yield _finding(change, "broadened" if is_new else "narrowed", (), f"{told} is {change.action}")
    elif change.type == "AWS::EC2::VPCEndpoint":
        yield from _endpoint(change)
    else:
        yield from _settings(change)


def _endpoint(change: ResourceChange) -> Iterator[Finding]:
    if change.action in ("added", "removed"):
        is_new = change.action == "added"
        service = text_of(change.properties("after" if is_new else "before").get("ServiceName", ""))
        text = f"nodes {'reach' if is_new else 'no longer reach'} {service} through an endpoint"
        yield _finding(change, "broadened" if is_new else "narrowed", ("ServiceName",), text)
        return
    old, new = (_let_through(change.properties(side)) for side in ("before", "after"))
    for direction, text in compared(old, new):
        yield _finding(change, direction, ("PolicyDocument",), f"endpoint: {text}")


def _let_through(properties: Mapping[str, Any]) -> list[Right]:
    return rights_of(properties["PolicyDocument"]) if "PolicyDocument" in properties else ALL_RIGHTS


def _settings(change: ResourceChange) -> Iterator[Finding]:
    """Yield switches that open something: public addresses, public buckets, the old metadata service."""
    if change.action == "removed":
        return
    for path, text in _opened(change.properties("after")):
        if (path, text) not in set(_opened(change.properties("before"))):
            yield _finding(change, "broadened", path, text)
    if change.before is not None:
        for path, text in _opened(change.properties("before")):
            if (path, text) not in set(_opened(change.properties("after"))):
                yield _finding(change, "narrowed", path, f"no longer: {text}")
    if change.type == "AWS::S3::Bucket":
        yield from _public_access(change)


def _opened(properties: Mapping[str, Any]) -> Iterator[tuple[PropertyPath, str]]:
    if text_of(properties.get("MapPublicIpOnLaunch", "")) == "true":
        yield ("MapPublicIpOnLaunch",), "machines in it get public addresses"
    data = properties.get("LaunchTemplateData")
    if not isinstance(data, Mapping):
        return
    where = ("LaunchTemplateData",)
    if any(text_of(one.get("AssociatePublicIpAddress", "")) == "true" for one in data.get("NetworkInterfaces", [])):
        yield (*where, "NetworkInterfaces"), "nodes get public addresses"
    metadata = data.get("MetadataOptions", {})
    if metadata.get("HttpTokens") != "required":
        yield (*where, "MetadataOptions", "HttpTokens"), "the metadata service answers without a token (IMDSv1)"
    if int(metadata.get("HttpPutResponseHopLimit", 1)) > 1:
        text = "the metadata service answers containers and routed requests"
        yield (*where, "MetadataOptions", "HttpPutResponseHopLimit"), text


def _public_access(change: ResourceChange) -> Iterator[Finding]:
    path = "PublicAccessBlockConfiguration"
    names = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
    # S3 blocks all four where a bucket says nothing. Source (2026-11):
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-control-block-public-access.html
    old, new = (
        {name: text_of(change.properties(side).get(path, {}).get(name, "true")) == "true" for name in names}
        for side in ("before", "after")
    )
    for name in names:
        if old[name] and not new[name]:
            yield _finding(change, "broadened", (path, name), f"may be made public: {name} is off")
        elif new[name] and not old[name]:
            yield _finding(change, "narrowed", (path, name), f"{name} is on")


def _groups(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> Iterator[Finding]:
    """Yield what each security group admits by all rules together, inline and on their own."""
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
                yield _finding(change, "broadened", (flow.side,), f"{group} admits {flow}")
        for flow in old:
            if not any(one.covers(flow) for one in new):
                yield _finding(change, "narrowed", (flow.side,), f"{group} no longer admits {flow}")


def _group_text(properties: Mapping[str, Any]) -> str:
    """Return how a rule names its group; the id of a group and a reference to it are the same."""
    return text_of(properties.get("GroupId", "")).replace(".GroupId}", "}")


def _flows(assembly: Assembly, stack: str, group: str) -> list[Flow]:
    found = []
    for logical_id, definition in assembly[stack].resources.items() if stack in assembly else ():
        properties = definition.get("Properties", {})
        if definition["Type"] == GROUP and f"${{{logical_id}}}" == group:
            found += [_flow(side, rule) for side in RULES.values() for rule in properties.get(side, [])]
            found += [] if "SecurityGroupEgress" in properties else [EVERYWHERE]
        elif definition["Type"] in RULES and _group_text(properties) == group:
            found.append(_flow(RULES[definition["Type"]], properties))
    return found


def _flow(side: str, rule: Mapping[str, Any]) -> Flow:
    peers = ("CidrIp", "CidrIpv6", "SourceSecurityGroupId", "DestinationSecurityGroupId")
    prefixes = ("SourcePrefixListId", "DestinationPrefixListId", "SourceSecurityGroupName")
    peer = next((text_of(rule[name]) for name in (*peers, *prefixes) if name in rule), "nobody")
    protocol = text_of(rule.get("IpProtocol", ANY_PROTOCOL))
    ports = None
    if protocol != ANY_PROTOCOL and "FromPort" in rule:
        ports = int(rule["FromPort"]), int(rule.get("ToPort", rule["FromPort"]))
    return Flow(side, protocol, ports, peer.replace(".GroupId}", "}"))


def _is_within(inner: str, outer: str) -> bool:
    try:
        networks = ipaddress.ip_network(inner), ipaddress.ip_network(outer)
    except ValueError:  # a reference, or a group
        return False
    first, second = networks
    if isinstance(first, ipaddress.IPv4Network) and isinstance(second, ipaddress.IPv4Network):
        return first.subnet_of(second)
    if isinstance(first, ipaddress.IPv6Network) and isinstance(second, ipaddress.IPv6Network):
        return first.subnet_of(second)
    return False
