"""What may pass in EC2's network, and what is written down of it: endpoints, security groups, ACLs, flow logs."""

from __future__ import annotations

from typing import Any, ClassVar

from ..provider import ResourceContext, ResourceFailure
from .ec2_resource import Ec2Resource
from .resource import Create, Delete, Describe, Place, Properties, added_removed, changed, codes
from .shapes import dig, text


class VpcEndpoint(Ec2Resource):
    """AWS::EC2::VPCEndpoint, gateway or interface."""

    type_name = "AWS::EC2::VPCEndpoint"
    create_only = frozenset({"ServiceName", "VpcEndpointType", "VpcId"})
    updatable = frozenset(
        {"PolicyDocument", "PrivateDnsEnabled", "RouteTableIds", "SubnetIds", "SecurityGroupIds", "Tags"}
        | {"IpAddressType", "DnsOptions"}
    )
    defaults = {"PrivateDnsEnabled": False}
    undroppable = frozenset({"IpAddressType", "DnsOptions"})
    creates = Create("create_vpc_endpoint", "VpcEndpoint.VpcEndpointId")
    describes = Describe("describe_vpc_endpoints", "VpcEndpointIds", "VpcEndpoints.0", listed=True)
    gone = codes("InvalidVpcEndpointId.NotFound")
    tag_kind = "vpc-endpoint"
    ready_states = ("State", frozenset({"available"}))
    gone_states = ("State", frozenset({"deleted"}))

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change what differs in one call."""
        arguments: dict[str, Any] = {}
        for name in ("RouteTableIds", "SubnetIds", "SecurityGroupIds"):
            added, removed = added_removed(old, new, name)
            arguments |= {f"Add{name}": added or None, f"Remove{name}": removed or None}
        for name, value in changed(
            old, new, "PolicyDocument", "PrivateDnsEnabled", "IpAddressType", "DnsOptions"
        ).items():
            if value is not None:
                arguments[name] = value
            else:
                arguments["ResetPolicy"] = True
        if any(value is not None for value in arguments.values()):
            at.call("modify_vpc_endpoint", VpcEndpointId=physical_id, **arguments)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return id, names and interfaces; DNS entries are `<hosted zone>:<name>`."""
        entries = found.get("DnsEntries", [])
        created = found.get("CreationTimestamp")
        return {
            "Id": found["VpcEndpointId"],
            "CreationTimestamp": created.isoformat() if created is not None else None,
            "DnsEntries": [f"{entry.get('HostedZoneId', '')}:{entry['DnsName']}" for entry in entries],
            "NetworkInterfaceIds": found.get("NetworkInterfaceIds", []),
        }

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the endpoint; the call answers success and says in the answer what failed."""
        if self.found(at, physical_id, properties) is None:
            return
        response = at.call("delete_vpc_endpoints", VpcEndpointIds=[physical_id])
        for failure in response.get("Unsuccessful", []):
            if failure["Error"]["Code"] not in self.gone:
                raise ResourceFailure(f"{physical_id}: {failure['Error']['Message']}")


class FlowLog(Ec2Resource):
    """AWS::EC2::FlowLog."""

    type_name = "AWS::EC2::FlowLog"
    create_only = frozenset(
        {"ResourceId", "ResourceType", "TrafficType", "LogDestinationType", "LogDestination", "LogGroupName"}
        | {"DeliverLogsPermissionArn", "LogFormat", "MaxAggregationInterval", "DestinationOptions"}
        | {"DeliverCrossAccountRole"}
    )
    updatable = frozenset({"Tags"})
    describes = Describe("describe_flow_logs", "FlowLogIds", "FlowLogs.0", listed=True)
    deletes = Delete("delete_flow_logs", "FlowLogIds", listed=True)
    gone = codes("InvalidFlowLogId.NotFound")
    tag_kind = "vpc-flow-log"

    def make(self, at: Place, properties: Properties) -> str:
        """Create the flow log; the call answers success and says in the answer what failed."""
        arguments = {**self.arguments(at, properties), **self.creation_tags(at, properties)}
        resource = arguments.pop("ResourceId")
        response = at.call("create_flow_logs", ResourceIds=[resource], **arguments)
        for failure in response.get("Unsuccessful", []):
            raise ResourceFailure(f"{failure['ResourceId']}: {failure['Error']['Message']}")
        return str(response["FlowLogIds"][0])

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"Id": found["FlowLogId"]}


class NetworkAcl(Ec2Resource):
    """AWS::EC2::NetworkAcl."""

    type_name = "AWS::EC2::NetworkAcl"
    create_only = frozenset({"VpcId"})
    updatable = frozenset({"Tags"})
    creates = Create("create_network_acl", "NetworkAcl.NetworkAclId")
    describes = Describe("describe_network_acls", "NetworkAclIds", "NetworkAcls.0", listed=True)
    deletes = Delete("delete_network_acl", "NetworkAclId")
    gone = codes("InvalidNetworkAclID.NotFound", "InvalidRouteTableID.NotFound")
    tag_kind = "network-acl"

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"Id": found["NetworkAclId"]}


_EVERYWHERE = {"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}
"""The egress rule that EC2 gives a new group, and that CloudFormation takes away when the template has its own."""


class SecurityGroup(Ec2Resource):
    """AWS::EC2::SecurityGroup with its inline rules; rules from other resources are left alone."""

    type_name = "AWS::EC2::SecurityGroup"
    create_only = frozenset({"GroupDescription", "GroupName", "VpcId"})
    updatable = frozenset({"SecurityGroupIngress", "SecurityGroupEgress", "Tags"})
    afterwards = frozenset({"SecurityGroupIngress", "SecurityGroupEgress"})
    renames = {"GroupDescription": "Description"}
    creates = Create("create_security_group", "GroupId")
    describes = Describe("describe_security_groups", "GroupIds", "SecurityGroups.0", listed=True)
    deletes = Delete("delete_security_group", "GroupId")
    gone = codes("InvalidGroup.NotFound")
    name_property = "GroupName"
    name_length = 255
    tag_kind = "security-group"

    def name_of(self, physical_id: str) -> str:
        """Return the id: the calls want that, not the name."""
        return physical_id

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Revoke the rules that went, then authorise the new ones."""
        for direction, default in (("ingress", []), ("egress", [_EVERYWHERE])):
            name = f"SecurityGroup{direction.capitalize()}"
            # An empty list is no rule set at all: it leaves EC2's default in place, as on AWS.
            before = [permission(rule) for rule in old.get(name) or default]
            after = [permission(rule) for rule in new.get(name) or default]
            gone, come = ([p for p in a if p not in b] for a, b in ((before, after), (after, before)))
            if gone:
                at.call(f"revoke_security_group_{direction}", GroupId=physical_id, IpPermissions=gone)
            if come:
                at.call(f"authorize_security_group_{direction}", GroupId=physical_id, IpPermissions=come)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ids."""
        return {"Id": found["GroupId"], "GroupId": found["GroupId"], "VpcId": found.get("VpcId")}

    def actual(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the rules that no other resource brought."""
        inside = [{"Name": "group-id", "Values": [physical_id]}]
        rules = self.place(context).call("describe_security_group_rules", Filters=inside)["SecurityGroupRules"]
        own = [rule for rule in rules if rule["SecurityGroupRuleId"] not in known_ids]
        return {
            "SecurityGroupIngress": [template_rule(rule) for rule in own if not rule["IsEgress"]],
            "SecurityGroupEgress": [template_rule(rule) for rule in own if rule["IsEgress"]],
        }


def permission(rule: Properties) -> dict[str, Any]:
    """Return a template's rule, inline or its own resource, as EC2's IpPermission.

    Raises:
        ResourceFailure: a key of the rule is unknown, or there is not exactly one other side.
    """
    described = {"Description": rule["Description"]} if rule.get("Description") else {}
    ends = [(key, place) for key, place in _OTHER_SIDES.items() if rule.get(key)]
    unknown = set(rule) - set(_OTHER_SIDES) - {"IpProtocol", "FromPort", "ToPort", "Description"} - _RULE_OWNERS
    if unknown or len(ends) != 1:
        problem = (
            f"unknown {', '.join(sorted(unknown))}" if unknown else f"wants exactly one of {', '.join(_OTHER_SIDES)}"
        )
        raise ResourceFailure(f"security group rule {dict(rule)}: {problem}")
    key, (container, member) = ends[0]
    end = {member: rule[key], **described}
    if rule.get("SourceSecurityGroupOwnerId"):
        end["UserId"] = rule["SourceSecurityGroupOwnerId"]
    ports = {name: int(rule[name]) for name in ("FromPort", "ToPort") if rule.get(name) is not None}
    return {"IpProtocol": text(rule["IpProtocol"]), **ports, container: [end]}


def template_rule(rule: Properties) -> dict[str, Any]:
    """Return a rule of EC2's as a template gives it; one of every protocol has no ports."""
    side = "Destination" if rule["IsEgress"] else "Source"
    group = rule.get("ReferencedGroupInfo") or {}
    found = {
        "IpProtocol": rule["IpProtocol"],
        "CidrIp": rule.get("CidrIpv4"),
        "CidrIpv6": rule.get("CidrIpv6"),
        f"{side}PrefixListId": rule.get("PrefixListId"),
        f"{side}SecurityGroupId": group.get("GroupId"),
        "Description": rule.get("Description"),
    }
    if rule["IpProtocol"] != "-1":
        found |= {name: rule.get(name) for name in ("FromPort", "ToPort")}
    return {name: value for name, value in found.items() if value not in (None, "")}


_RULE_OWNERS = {"GroupId", "GroupName", "SourceSecurityGroupOwnerId"}
_OTHER_SIDES = {
    "CidrIp": ("IpRanges", "CidrIp"),
    "CidrIpv6": ("Ipv6Ranges", "CidrIpv6"),
    "SourcePrefixListId": ("PrefixListIds", "PrefixListId"),
    "DestinationPrefixListId": ("PrefixListIds", "PrefixListId"),
    "SourceSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
    "SourceSecurityGroupName": ("UserIdGroupPairs", "GroupName"),
    "DestinationSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
}


class SecurityGroupRule(Ec2Resource):
    """What the two types of single rules share; the id is the rule's."""

    direction: ClassVar[str]
    updatable = frozenset({"Description"})
    gone = codes("InvalidPermission.NotFound", "InvalidGroup.NotFound", "InvalidSecurityGroupRuleId.NotFound")

    def make(self, at: Place, properties: Properties) -> str:
        """Authorise the rule."""
        group = {name: properties[name] for name in ("GroupId", "GroupName") if properties.get(name)}
        rules = at.call(f"authorize_security_group_{self.direction}", **group, IpPermissions=[permission(properties)])
        return str(dig(rules, "SecurityGroupRules.0.SecurityGroupRuleId"))

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Describe the rule differently."""
        if changed(old, new, "Description"):
            at.call(
                f"update_security_group_rule_descriptions_{self.direction}",
                GroupId=new["GroupId"],
                IpPermissions=[permission(new)],
            )

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the rule in its group."""
        inside = [{"Name": "group-id", "Values": [properties["GroupId"]]}]
        rules = at.call("describe_security_group_rules", Filters=inside)["SecurityGroupRules"]
        return next((rule for rule in rules if rule["SecurityGroupRuleId"] == physical_id), None)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"Id": found["SecurityGroupRuleId"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Revoke the rule."""
        at.call(
            f"revoke_security_group_{self.direction}",
            GroupId=properties["GroupId"],
            SecurityGroupRuleIds=[physical_id],
        )


_RULE = frozenset({"GroupId", "IpProtocol", "FromPort", "ToPort", "CidrIp", "CidrIpv6"})


class SecurityGroupIngress(SecurityGroupRule):
    """AWS::EC2::SecurityGroupIngress."""

    type_name = "AWS::EC2::SecurityGroupIngress"
    direction = "ingress"
    create_only = _RULE | {"SourcePrefixListId", "SourceSecurityGroupId", "SourceSecurityGroupOwnerId"}


class SecurityGroupEgress(SecurityGroupRule):
    """AWS::EC2::SecurityGroupEgress."""

    type_name = "AWS::EC2::SecurityGroupEgress"
    direction = "egress"
    create_only = _RULE | {"DestinationPrefixListId", "DestinationSecurityGroupId"}


PROVIDERS = (
    VpcEndpoint(),
    FlowLog(),
    NetworkAcl(),
    SecurityGroup(),
    SecurityGroupIngress(),
    SecurityGroupEgress(),
)
