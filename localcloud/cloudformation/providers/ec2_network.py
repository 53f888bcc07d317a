"""EC2's network: VPCs, subnets, routes, gateways, addresses."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceFailure
from .ec2_resource import Ec2Resource
from .resource import Create, Delete, Describe, Place, Properties, changed, codes


class Vpc(Ec2Resource):
    """AWS::EC2::VPC."""

    type_name = "AWS::EC2::VPC"
    create_only = frozenset({"CidrBlock"})
    updatable = frozenset({"EnableDnsSupport", "EnableDnsHostnames", "InstanceTenancy", "Tags"})
    afterwards = frozenset({"EnableDnsSupport", "EnableDnsHostnames"})
    defaults = {"EnableDnsSupport": True, "EnableDnsHostnames": False, "InstanceTenancy": "default"}
    creates = Create("create_vpc", "Vpc.VpcId")
    describes = Describe("describe_vpcs", "VpcIds", "Vpcs.0", listed=True)
    deletes = Delete("delete_vpc", "VpcId")
    gone = codes("InvalidVpcID.NotFound")
    tag_kind = "vpc"
    ready_states = ("State", frozenset({"available"}))

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the DNS attributes (one a call, as the API wants) and the tenancy."""
        for name, value in changed(old, new, "EnableDnsSupport", "EnableDnsHostnames").items():
            at.call("modify_vpc_attribute", VpcId=physical_id, **{name: {"Value": value}})
        if changed(old, new, "InstanceTenancy"):
            at.call("modify_vpc_tenancy", VpcId=physical_id, InstanceTenancy=new["InstanceTenancy"])

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ids of the VPC and of what EC2 makes with it."""
        inside = [{"Name": "vpc-id", "Values": [found["VpcId"]]}]
        groups = at.call("describe_security_groups", Filters=[*inside, {"Name": "group-name", "Values": ["default"]}])[
            "SecurityGroups"
        ]
        acls = at.call("describe_network_acls", Filters=[*inside, {"Name": "default", "Values": ["true"]}])
        ipv6 = found.get("Ipv6CidrBlockAssociationSet", [])
        return {
            "VpcId": found["VpcId"],
            "CidrBlock": found["CidrBlock"],
            "CidrBlockAssociations": [item["AssociationId"] for item in found.get("CidrBlockAssociationSet", [])],
            "DefaultSecurityGroup": groups[0]["GroupId"] if groups else None,
            "DefaultNetworkAcl": acls["NetworkAcls"][0]["NetworkAclId"] if acls["NetworkAcls"] else None,
            "Ipv6CidrBlocks": [item["Ipv6CidrBlock"] for item in ipv6],
        }


class Subnet(Ec2Resource):
    """AWS::EC2::Subnet."""

    type_name = "AWS::EC2::Subnet"
    create_only = frozenset({"VpcId", "CidrBlock", "AvailabilityZone", "AvailabilityZoneId"})
    updatable = frozenset({"MapPublicIpOnLaunch", "AssignIpv6AddressOnCreation", "Tags"})
    afterwards = frozenset({"MapPublicIpOnLaunch", "AssignIpv6AddressOnCreation"})
    defaults = {"MapPublicIpOnLaunch": False, "AssignIpv6AddressOnCreation": False}
    creates = Create("create_subnet", "Subnet.SubnetId")
    describes = Describe("describe_subnets", "SubnetIds", "Subnets.0", listed=True)
    deletes = Delete("delete_subnet", "SubnetId")
    gone = codes("InvalidSubnetID.NotFound")
    tag_kind = "subnet"
    ready_states = ("State", frozenset({"available"}))

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the launch attributes, one a call."""
        for name, value in changed(old, new, *self.afterwards).items():
            at.call("modify_subnet_attribute", SubnetId=physical_id, **{name: {"Value": value}})

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return what the subnet is and where."""
        subnet = found["SubnetId"]
        acls = at.call("describe_network_acls", Filters=[{"Name": "association.subnet-id", "Values": [subnet]}])
        links = [link for acl in acls["NetworkAcls"] for link in acl["Associations"] if link["SubnetId"] == subnet]
        names = ("SubnetId", "VpcId", "CidrBlock", "AvailabilityZone", "AvailabilityZoneId")
        ipv6 = found.get("Ipv6CidrBlockAssociationSet", [])
        return {
            **{name: found[name] for name in names},
            "NetworkAclAssociationId": links[0]["NetworkAclAssociationId"] if links else None,
            "Ipv6CidrBlocks": [item["Ipv6CidrBlock"] for item in ipv6],
        }


class RouteTable(Ec2Resource):
    """AWS::EC2::RouteTable."""

    type_name = "AWS::EC2::RouteTable"
    create_only = frozenset({"VpcId"})
    updatable = frozenset({"Tags"})
    creates = Create("create_route_table", "RouteTable.RouteTableId")
    describes = Describe("describe_route_tables", "RouteTableIds", "RouteTables.0", listed=True)
    deletes = Delete("delete_route_table", "RouteTableId")
    gone = codes("InvalidRouteTableID.NotFound")
    tag_kind = "route-table"

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"RouteTableId": found["RouteTableId"]}


_DESTINATIONS = ("DestinationCidrBlock", "DestinationIpv6CidrBlock", "DestinationPrefixListId")


class Route(Ec2Resource):
    """AWS::EC2::Route; its id is `<route table>|<destination>`."""

    type_name = "AWS::EC2::Route"
    create_only = frozenset({"RouteTableId", *_DESTINATIONS})
    updatable = frozenset(
        {"GatewayId", "NatGatewayId", "InstanceId", "NetworkInterfaceId", "VpcPeeringConnectionId"}
        | {"TransitGatewayId", "EgressOnlyInternetGatewayId", "VpcEndpointId"}
    )
    gone = codes("InvalidRoute.NotFound", "InvalidRouteTableID.NotFound")

    def make(self, at: Place, properties: Properties) -> str:
        """Create the route."""
        at.call("create_route", **properties)
        return f"{properties['RouteTableId']}|{_destination(properties)[1]}"

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Point the route elsewhere."""
        if changed(old, new, *self.updatable):
            at.call("replace_route", **new)

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the route in its table."""
        table, destination = physical_id.split("|", 1)
        tables = at.call("describe_route_tables", RouteTableIds=[table])["RouteTables"]
        routes = [route for item in tables for route in item["Routes"]]
        return next((r for r in routes if destination in {r.get(name) for name in _DESTINATIONS}), None)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the destination."""
        return {"CidrBlock": _destination(properties)[1]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the route."""
        name, value = _destination(properties)
        at.call("delete_route", RouteTableId=physical_id.split("|", 1)[0], **{name: value})


def _destination(properties: Properties) -> tuple[str, str]:
    given = [(name, str(properties[name])) for name in _DESTINATIONS if properties.get(name)]
    if len(given) != 1:
        raise ResourceFailure(f"AWS::EC2::Route: give exactly one of {', '.join(_DESTINATIONS)}")
    return given[0]


class SubnetRouteTableAssociation(Ec2Resource):
    """AWS::EC2::SubnetRouteTableAssociation."""

    type_name = "AWS::EC2::SubnetRouteTableAssociation"
    create_only = frozenset({"SubnetId", "RouteTableId"})
    creates = Create("associate_route_table", "AssociationId")
    deletes = Delete("disassociate_route_table", "AssociationId")
    gone = codes("InvalidAssociationID.NotFound", "InvalidRouteTableID.NotFound")

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the association in its route table."""
        tables = at.call("describe_route_tables", RouteTableIds=[properties["RouteTableId"]])["RouteTables"]
        links = [link for table in tables for link in table["Associations"]]
        return next((link for link in links if link["RouteTableAssociationId"] == physical_id), None)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"Id": found["RouteTableAssociationId"]}


class InternetGateway(Ec2Resource):
    """AWS::EC2::InternetGateway."""

    type_name = "AWS::EC2::InternetGateway"
    updatable = frozenset({"Tags"})
    creates = Create("create_internet_gateway", "InternetGateway.InternetGatewayId")
    describes = Describe("describe_internet_gateways", "InternetGatewayIds", "InternetGateways.0", listed=True)
    deletes = Delete("delete_internet_gateway", "InternetGatewayId")
    gone = codes("InvalidInternetGatewayID.NotFound", "InvalidInternetGatewayId.NotFound")
    tag_kind = "internet-gateway"

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"InternetGatewayId": found["InternetGatewayId"]}


class VpcGatewayAttachment(Ec2Resource):
    """AWS::EC2::VPCGatewayAttachment of an internet gateway; its id is `IGW|<vpc>`."""

    type_name = "AWS::EC2::VPCGatewayAttachment"
    create_only = frozenset({"VpcId"})
    updatable = frozenset({"InternetGatewayId"})
    gone = codes("Gateway.NotAttached", "InvalidInternetGatewayID.NotFound", "InvalidVpcID.NotFound")

    def make(self, at: Place, properties: Properties) -> str:
        """Attach the gateway."""
        at.call("attach_internet_gateway", **properties)
        return f"IGW|{properties['VpcId']}"

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Attach another gateway instead."""
        if changed(old, new, "InternetGatewayId"):
            at.call("detach_internet_gateway", **old)
            at.call("attach_internet_gateway", **new)

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the attachment at its gateway."""
        gateways = at.call("describe_internet_gateways", InternetGatewayIds=[properties["InternetGatewayId"]])
        links = [link for gateway in gateways["InternetGateways"] for link in gateway["Attachments"]]
        return next((link for link in links if link["VpcId"] == properties["VpcId"]), None)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the kind of gateway."""
        return {"AttachmentType": "IGW"}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Detach the gateway."""
        at.call("detach_internet_gateway", **properties)


class ElasticIp(Ec2Resource):
    """AWS::EC2::EIP; its id is the public address."""

    type_name = "AWS::EC2::EIP"
    create_only = frozenset({"Domain", "NetworkBorderGroup"})
    updatable = frozenset({"InstanceId", "Tags"})
    afterwards = frozenset({"InstanceId"})
    creates = Create("allocate_address", "PublicIp")
    describes = Describe("describe_addresses", "PublicIps", "Addresses.0", listed=True)
    gone = codes("InvalidAddress.NotFound", "InvalidAllocationID.NotFound")
    tag_kind = "elastic-ip"

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Ask for a VPC address, the only kind there is today."""
        return {"Domain": "vpc", **super().arguments(at, properties)}

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Move the address to another instance, or take it off."""
        if not changed(old, new, "InstanceId"):
            return
        address = self.found(at, physical_id, new) or {}
        if address.get("AssociationId"):
            at.call("disassociate_address", AssociationId=address["AssociationId"])
        if new.get("InstanceId"):
            at.call("associate_address", AllocationId=address["AllocationId"], InstanceId=new["InstanceId"])

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return address and allocation."""
        return {"PublicIp": found["PublicIp"], "AllocationId": found["AllocationId"]}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the allocation, which is what has the tags."""
        return str((self.found(at, physical_id, properties) or {})["AllocationId"])

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Release the address, taking it off its instance first."""
        address = self.describe(at, physical_id, properties)
        if address is None:
            return
        if address.get("AssociationId"):
            at.call("disassociate_address", AssociationId=address["AssociationId"])
        at.call("release_address", AllocationId=address["AllocationId"])


class NatGateway(Ec2Resource):
    """AWS::EC2::NatGateway of one zone."""

    type_name = "AWS::EC2::NatGateway"
    create_only = frozenset({"SubnetId", "AllocationId", "ConnectivityType", "PrivateIpAddress"})
    updatable = frozenset({"Tags"})
    creates = Create("create_nat_gateway", "NatGateway.NatGatewayId")
    describes = Describe("describe_nat_gateways", "NatGatewayIds", "NatGateways.0", listed=True)
    deletes = Delete("delete_nat_gateway", "NatGatewayId")
    gone = codes("NatGatewayNotFound")
    tag_kind = "natgateway"
    ready_states = ("State", frozenset({"available"}))
    gone_states = ("State", frozenset({"deleted"}))

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the gateway and its interface."""
        addresses = found.get("NatGatewayAddresses") or [{}]
        return {"NatGatewayId": found["NatGatewayId"], "EniId": addresses[0].get("NetworkInterfaceId")}


PROVIDERS = (
    Vpc(),
    Subnet(),
    RouteTable(),
    Route(),
    SubnetRouteTableAssociation(),
    InternetGateway(),
    VpcGatewayAttachment(),
    ElasticIp(),
    NatGateway(),
)
