"""EC2 networks: VPCs, subnets, routes, gateways and addresses."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.ec2.resource import Ec2Resource


class Vpc(Ec2Resource):
    """AWS::EC2::VPC."""

    type_name = "AWS::EC2::VPC"
    create_only = frozenset({"CidrBlock"})
    updatable = frozenset({"EnableDnsSupport", "EnableDnsHostnames", "InstanceTenancy", "Tags"})
    set_after_create = frozenset({"EnableDnsSupport", "EnableDnsHostnames"})
    defaults = {"EnableDnsSupport": True, "EnableDnsHostnames": False, "InstanceTenancy": "default"}
    create_call = Create("create_vpc", "Vpc.VpcId")
    describe_call = Describe("describe_vpcs", "VpcIds", "Vpcs.0", listed=True)
    delete_call = Delete("delete_vpc", "VpcId")
    not_found_codes = error_codes("InvalidVpcID.NotFound")
    tag_kind = "vpc"
    ready_states = ("State", frozenset({"available"}))

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the tenancy and the DNS attributes. The API accepts only one attribute per call."""
        for name, value in changed(old, new, "EnableDnsSupport", "EnableDnsHostnames").items():
            api.call("modify_vpc_attribute", VpcId=physical_id, **{name: {"Value": value}})
        if changed(old, new, "InstanceTenancy"):
            api.call("modify_vpc_tenancy", VpcId=physical_id, InstanceTenancy=new["InstanceTenancy"])

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the IDs of the VPC and of the default resources that EC2 creates with it."""
        inside = [{"Name": "vpc-id", "Values": [found["VpcId"]]}]
        groups = api.call("describe_security_groups", Filters=[*inside, {"Name": "group-name", "Values": ["default"]}])[
            "SecurityGroups"
        ]
        acls = api.call("describe_network_acls", Filters=[*inside, {"Name": "default", "Values": ["true"]}])
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
    set_after_create = frozenset({"MapPublicIpOnLaunch", "AssignIpv6AddressOnCreation"})
    defaults = {"MapPublicIpOnLaunch": False, "AssignIpv6AddressOnCreation": False}
    create_call = Create("create_subnet", "Subnet.SubnetId")
    describe_call = Describe("describe_subnets", "SubnetIds", "Subnets.0", listed=True)
    delete_call = Delete("delete_subnet", "SubnetId")
    not_found_codes = error_codes("InvalidSubnetID.NotFound")
    tag_kind = "subnet"
    ready_states = ("State", frozenset({"available"}))

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the launch attributes. The API accepts only one attribute per call."""
        for name, value in changed(old, new, *self.set_after_create).items():
            api.call("modify_subnet_attribute", SubnetId=physical_id, **{name: {"Value": value}})

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the subnet's IDs, address ranges and zone."""
        subnet = found["SubnetId"]
        acls = api.call("describe_network_acls", Filters=[{"Name": "association.subnet-id", "Values": [subnet]}])
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
    create_call = Create("create_route_table", "RouteTable.RouteTableId")
    describe_call = Describe("describe_route_tables", "RouteTableIds", "RouteTables.0", listed=True)
    delete_call = Delete("delete_route_table", "RouteTableId")
    not_found_codes = error_codes("InvalidRouteTableID.NotFound")
    tag_kind = "route-table"

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"RouteTableId": found["RouteTableId"]}


_DESTINATIONS = ("DestinationCidrBlock", "DestinationIpv6CidrBlock", "DestinationPrefixListId")


class Route(Ec2Resource):
    """AWS::EC2::Route. The physical ID is `<route table>|<destination>`."""

    type_name = "AWS::EC2::Route"
    create_only = frozenset({"RouteTableId", *_DESTINATIONS})
    updatable = frozenset(
        {"GatewayId", "NatGatewayId", "InstanceId", "NetworkInterfaceId", "VpcPeeringConnectionId"}
        | {"TransitGatewayId", "EgressOnlyInternetGatewayId", "VpcEndpointId"}
    )
    not_found_codes = error_codes("InvalidRoute.NotFound", "InvalidRouteTableID.NotFound")

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Create the route."""
        api.call("create_route", **properties)
        return f"{properties['RouteTableId']}|{_destination(properties)[1]}"

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Change the route's target."""
        if changed(old, new, *self.updatable):
            api.call("replace_route", **new)

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the route from its route table."""
        table, destination = physical_id.split("|", 1)
        tables = api.call("describe_route_tables", RouteTableIds=[table])["RouteTables"]
        routes = [route for item in tables for route in item["Routes"]]
        return next((r for r in routes if destination in {r.get(name) for name in _DESTINATIONS}), None)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the destination."""
        return {"CidrBlock": _destination(properties)[1]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Delete the route."""
        name, value = _destination(properties)
        api.call("delete_route", RouteTableId=physical_id.split("|", 1)[0], **{name: value})


def _destination(properties: Properties) -> tuple[str, str]:
    given = [(name, str(properties[name])) for name in _DESTINATIONS if properties.get(name)]
    if len(given) != 1:
        raise ResourceFailure(f"AWS::EC2::Route: exactly one of {', '.join(_DESTINATIONS)} is required")
    return given[0]


class SubnetRouteTableAssociation(Ec2Resource):
    """AWS::EC2::SubnetRouteTableAssociation."""

    type_name = "AWS::EC2::SubnetRouteTableAssociation"
    create_only = frozenset({"SubnetId", "RouteTableId"})
    create_call = Create("associate_route_table", "AssociationId")
    delete_call = Delete("disassociate_route_table", "AssociationId")
    not_found_codes = error_codes("InvalidAssociationID.NotFound", "InvalidRouteTableID.NotFound")

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the association from its route table."""
        tables = api.call("describe_route_tables", RouteTableIds=[properties["RouteTableId"]])["RouteTables"]
        links = [link for table in tables for link in table["Associations"]]
        return next((link for link in links if link["RouteTableAssociationId"] == physical_id), None)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"Id": found["RouteTableAssociationId"]}


class InternetGateway(Ec2Resource):
    """AWS::EC2::InternetGateway."""

    type_name = "AWS::EC2::InternetGateway"
    updatable = frozenset({"Tags"})
    create_call = Create("create_internet_gateway", "InternetGateway.InternetGatewayId")
    describe_call = Describe("describe_internet_gateways", "InternetGatewayIds", "InternetGateways.0", listed=True)
    delete_call = Delete("delete_internet_gateway", "InternetGatewayId")
    not_found_codes = error_codes("InvalidInternetGatewayID.NotFound", "InvalidInternetGatewayId.NotFound")
    tag_kind = "internet-gateway"

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"InternetGatewayId": found["InternetGatewayId"]}


class VpcGatewayAttachment(Ec2Resource):
    """AWS::EC2::VPCGatewayAttachment for an internet gateway. The physical ID is `IGW|<vpc>`."""

    type_name = "AWS::EC2::VPCGatewayAttachment"
    create_only = frozenset({"VpcId"})
    updatable = frozenset({"InternetGatewayId"})
    not_found_codes = error_codes("Gateway.NotAttached", "InvalidInternetGatewayID.NotFound", "InvalidVpcID.NotFound")

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Attach the gateway."""
        api.call("attach_internet_gateway", **properties)
        return f"IGW|{properties['VpcId']}"

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Detach the old gateway and attach the new one."""
        if changed(old, new, "InternetGatewayId"):
            api.call("detach_internet_gateway", **old)
            api.call("attach_internet_gateway", **new)

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the attachment from its gateway."""
        gateways = api.call("describe_internet_gateways", InternetGatewayIds=[properties["InternetGatewayId"]])
        links = [link for gateway in gateways["InternetGateways"] for link in gateway["Attachments"]]
        return next((link for link in links if link["VpcId"] == properties["VpcId"]), None)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the attachment's type."""
        return {"AttachmentType": "IGW"}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Detach the gateway."""
        api.call("detach_internet_gateway", **properties)


class ElasticIp(Ec2Resource):
    """AWS::EC2::EIP. The physical ID is the public address."""

    type_name = "AWS::EC2::EIP"
    create_only = frozenset({"Domain", "NetworkBorderGroup"})
    updatable = frozenset({"InstanceId", "Tags"})
    set_after_create = frozenset({"InstanceId"})
    create_call = Create("allocate_address", "PublicIp")
    describe_call = Describe("describe_addresses", "PublicIps", "Addresses.0", listed=True)
    not_found_codes = error_codes("InvalidAddress.NotFound", "InvalidAllocationID.NotFound")
    tag_kind = "elastic-ip"

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Request an address in the VPC domain, the only domain that EC2 still offers."""
        return {"Domain": "vpc", **super().arguments(api, properties)}

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Associate the address with another instance, or disassociate it."""
        if not changed(old, new, "InstanceId"):
            return
        address = self.find(api, physical_id, new) or {}
        if address.get("AssociationId"):
            api.call("disassociate_address", AssociationId=address["AssociationId"])
        if new.get("InstanceId"):
            api.call("associate_address", AllocationId=address["AllocationId"], InstanceId=new["InstanceId"])

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the address and its allocation ID."""
        return {"PublicIp": found["PublicIp"], "AllocationId": found["AllocationId"]}

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the allocation ID, which identifies the address in tagging calls."""
        return str((self.find(api, physical_id, properties) or {})["AllocationId"])

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Disassociate the address from its instance and release it."""
        address = self.describe(api, physical_id, properties)
        if address is None:
            return
        if address.get("AssociationId"):
            api.call("disassociate_address", AssociationId=address["AssociationId"])
        api.call("release_address", AllocationId=address["AllocationId"])


class NatGateway(Ec2Resource):
    """AWS::EC2::NatGateway in one zone. Regional NAT gateways are not emulated."""

    type_name = "AWS::EC2::NatGateway"
    create_only = frozenset({"SubnetId", "AllocationId", "ConnectivityType", "PrivateIpAddress"})
    updatable = frozenset({"Tags"})
    create_call = Create("create_nat_gateway", "NatGateway.NatGatewayId")
    describe_call = Describe("describe_nat_gateways", "NatGatewayIds", "NatGateways.0", listed=True)
    delete_call = Delete("delete_nat_gateway", "NatGatewayId")
    not_found_codes = error_codes("NatGatewayNotFound")
    tag_kind = "natgateway"
    ready_states = ("State", frozenset({"available"}))
    deleted_states = ("State", frozenset({"deleted"}))

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the IDs of the gateway and its network interface."""
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
