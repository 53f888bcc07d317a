"""EC2 network traffic: VPC endpoints, security groups and flow logs."""

from __future__ import annotations

from typing import Any, ClassVar

from localcloud.cloudformation.provider import ResourceContext, ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    ResourceApi,
    added_removed,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.shapes import get_path, text
from localcloud.cloudformation.providers.ec2.resource import Ec2Resource


class VpcEndpoint(Ec2Resource):
    """AWS::EC2::VPCEndpoint of type Gateway or Interface."""

    type_name = "AWS::EC2::VPCEndpoint"
    create_only = frozenset({"ServiceName", "VpcEndpointType", "VpcId"})
    updatable = frozenset(
        {"PolicyDocument", "PrivateDnsEnabled", "RouteTableIds", "SubnetIds", "SecurityGroupIds", "Tags"}
        | {"IpAddressType", "DnsOptions"}
    )
    defaults = {"PrivateDnsEnabled": False}
    unremovable = frozenset({"IpAddressType", "DnsOptions"})
    create_call = Create("create_vpc_endpoint", "VpcEndpoint.VpcEndpointId")
    describe_call = Describe("describe_vpc_endpoints", "VpcEndpointIds", "VpcEndpoints.0", listed=True)
    not_found_codes = error_codes("InvalidVpcEndpointId.NotFound")
    tag_kind = "vpc-endpoint"
    ready_states = ("State", frozenset({"available"}))
    deleted_states = ("State", frozenset({"deleted"}))

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the changed settings in a single call."""
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
            api.call("modify_vpc_endpoint", VpcEndpointId=physical_id, **arguments)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID, DNS entries (`<hosted zone>:<name>`) and network interfaces."""
        entries = found.get("DnsEntries", [])
        created = found.get("CreationTimestamp")
        return {
            "Id": found["VpcEndpointId"],
            "CreationTimestamp": created.isoformat() if created is not None else None,
            "DnsEntries": [f"{entry.get('HostedZoneId', '')}:{entry['DnsName']}" for entry in entries],
            "NetworkInterfaceIds": found.get("NetworkInterfaceIds", []),
        }

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Delete the endpoint. A successful response may still list failures."""
        if self.find(api, physical_id, properties) is None:
            return
        response = api.call("delete_vpc_endpoints", VpcEndpointIds=[physical_id])
        for failure in response.get("Unsuccessful", []):
            if failure["Error"]["Code"] not in self.not_found_codes:
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
    describe_call = Describe("describe_flow_logs", "FlowLogIds", "FlowLogs.0", listed=True)
    delete_call = Delete("delete_flow_logs", "FlowLogIds", listed=True)
    not_found_codes = error_codes("InvalidFlowLogId.NotFound")
    tag_kind = "vpc-flow-log"

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Create the flow log. A successful response may still list failures."""
        arguments = {**self.arguments(api, properties), **self.creation_tags(api, properties)}
        resource = arguments.pop("ResourceId")
        response = api.call("create_flow_logs", ResourceIds=[resource], **arguments)
        for failure in response.get("Unsuccessful", []):
            raise ResourceFailure(f"{failure['ResourceId']}: {failure['Error']['Message']}")
        return str(response["FlowLogIds"][0])

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"Id": found["FlowLogId"]}


_EVERYWHERE = {"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}
"""EC2's default egress rule, which CloudFormation removes if the template has egress rules."""


class SecurityGroup(Ec2Resource):
    """AWS::EC2::SecurityGroup with its inline rules. It does not change rules that are separate resources."""

    type_name = "AWS::EC2::SecurityGroup"
    create_only = frozenset({"GroupDescription", "GroupName", "VpcId"})
    updatable = frozenset({"SecurityGroupIngress", "SecurityGroupEgress", "Tags"})
    set_after_create = frozenset({"SecurityGroupIngress", "SecurityGroupEgress"})
    parameter_names = {"GroupDescription": "Description"}
    create_call = Create("create_security_group", "GroupId")
    describe_call = Describe("describe_security_groups", "GroupIds", "SecurityGroups.0", listed=True)
    delete_call = Delete("delete_security_group", "GroupId")
    not_found_codes = error_codes("InvalidGroup.NotFound")
    name_property = "GroupName"
    name_length = 255
    tag_kind = "security-group"

    def name_of(self, physical_id: str) -> str:
        """Return the ID, which API calls use instead of the name."""
        return physical_id

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Revoke the removed rules, then authorize the added ones."""
        for direction, default in (("ingress", []), ("egress", [_EVERYWHERE])):
            name = f"SecurityGroup{direction.capitalize()}"
            # As on AWS, an empty list is treated like no rules, and EC2's default rule remains.
            before = [permission(rule) for rule in old.get(name) or default]
            after = [permission(rule) for rule in new.get(name) or default]
            removed, added = ([p for p in a if p not in b] for a, b in ((before, after), (after, before)))
            if removed:
                api.call(f"revoke_security_group_{direction}", GroupId=physical_id, IpPermissions=removed)
            if added:
                api.call(f"authorize_security_group_{direction}", GroupId=physical_id, IpPermissions=added)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the IDs."""
        return {"Id": found["GroupId"], "GroupId": found["GroupId"], "VpcId": found.get("VpcId")}

    def read_properties(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the rules that do not belong to another resource."""
        inside = [{"Name": "group-id", "Values": [physical_id]}]
        rules = self.api(context).call("describe_security_group_rules", Filters=inside)["SecurityGroupRules"]
        own = [rule for rule in rules if rule["SecurityGroupRuleId"] not in known_ids]
        return {
            "SecurityGroupIngress": [template_rule(rule) for rule in own if not rule["IsEgress"]],
            "SecurityGroupEgress": [template_rule(rule) for rule in own if rule["IsEgress"]],
        }


def permission(rule: Properties) -> dict[str, Any]:
    """Return a template's rule, which may be inline or a separate resource, as an EC2 IpPermission.

    Raises:
        ResourceFailure: The rule has an unknown key, or does not have exactly one source or destination.
    """
    described = {"Description": rule["Description"]} if rule.get("Description") else {}
    ends = [(key, place) for key, place in _PEERS.items() if rule.get(key)]
    unknown = set(rule) - set(_PEERS) - {"IpProtocol", "FromPort", "ToPort", "Description"} - _RULE_OWNERS
    if unknown or len(ends) != 1:
        problem = (
            f"unknown keys: {', '.join(sorted(unknown))}"
            if unknown
            else f"exactly one of {', '.join(_PEERS)} is required"
        )
        raise ResourceFailure(f"security group rule {dict(rule)}: {problem}")
    key, (container, member) = ends[0]
    end = {member: rule[key], **described}
    if rule.get("SourceSecurityGroupOwnerId"):
        end["UserId"] = rule["SourceSecurityGroupOwnerId"]
    ports = {name: int(rule[name]) for name in ("FromPort", "ToPort") if rule.get(name) is not None}
    return {"IpProtocol": text(rule["IpProtocol"]), **ports, container: [end]}


def template_rule(rule: Properties) -> dict[str, Any]:
    """Return an EC2 rule in template form. A rule for all protocols has no ports."""
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
_PEERS = {
    "CidrIp": ("IpRanges", "CidrIp"),
    "CidrIpv6": ("Ipv6Ranges", "CidrIpv6"),
    "SourcePrefixListId": ("PrefixListIds", "PrefixListId"),
    "DestinationPrefixListId": ("PrefixListIds", "PrefixListId"),
    "SourceSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
    "SourceSecurityGroupName": ("UserIdGroupPairs", "GroupName"),
    "DestinationSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
}


class SecurityGroupRule(Ec2Resource):
    """Base class for the two rule types. The physical ID is the rule's ID."""

    direction: ClassVar[str]
    updatable = frozenset({"Description"})
    not_found_codes = error_codes(
        "InvalidPermission.NotFound", "InvalidGroup.NotFound", "InvalidSecurityGroupRuleId.NotFound"
    )

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Authorize the rule and return its ID."""
        group = {name: properties[name] for name in ("GroupId", "GroupName") if properties.get(name)}
        rules = api.call(f"authorize_security_group_{self.direction}", **group, IpPermissions=[permission(properties)])
        return str(get_path(rules, "SecurityGroupRules.0.SecurityGroupRuleId"))

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the rule's description."""
        if changed(old, new, "Description"):
            api.call(
                f"update_security_group_rule_descriptions_{self.direction}",
                GroupId=new["GroupId"],
                IpPermissions=[permission(new)],
            )

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the rule from its group."""
        inside = [{"Name": "group-id", "Values": [properties["GroupId"]]}]
        rules = api.call("describe_security_group_rules", Filters=inside)["SecurityGroupRules"]
        return next((rule for rule in rules if rule["SecurityGroupRuleId"] == physical_id), None)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"Id": found["SecurityGroupRuleId"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Revoke the rule."""
        api.call(
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


PROVIDERS = (VpcEndpoint(), FlowLog(), SecurityGroup(), SecurityGroupIngress(), SecurityGroupEgress())
