"""Resolves RunInstances parameters, or a launch template with overrides, to a launch specification.

Resolving has no side effects. The inventory launches the instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Clients, as_api_error
from localcloud.compute.capacity import Market
from localcloud.compute.errors import UserDataError
from localcloud.compute.launch import user_data
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.network_cards import check_interfaces, numbered, primary_address
from localcloud.compute.launch.placement import PlacementGroups
from localcloud.compute.launch.purchase import PurchaseOptions, read_purchase
from localcloud.compute.launch.volumes import check_volume

_SSM_PREFIX = "resolve:ssm:"
_PASSED_ON = ("KeyName", "EbsOptimized", "DisableApiTermination", "DisableApiStop", "HibernationOptions")
_METADATA_TAG_KEY = r"[0-9a-zA-Z\-_+=,.@:]{1,255}"
"""Keys of tags in instance metadata. Source: https://github.com/seek-oss/aec/pull/411."""
_RESERVED_TAG_KEYS = (".", "..", "_index")
_DEFAULT_METADATA_OPTIONS = {
    "HttpTokens": "optional", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled",
    "HttpProtocolIpv6": "disabled", "InstanceMetadataTags": "disabled",
}  # fmt: skip


@dataclass(frozen=True)
class InstanceProfile:
    """An instance profile and its role."""

    name: str
    arn: str
    profile_id: str
    role_name: str
    role_arn: str


@dataclass(frozen=True)
class LaunchTemplateVersion:
    """A launch template version. `data` is in the format of DescribeLaunchTemplateVersions."""

    template_id: str
    name: str
    version: int
    data: Mapping[str, Any]


@dataclass(frozen=True)
class LaunchSpecification:
    """The complete input for a launch, with every reference checked."""

    image_id: str
    instance_type: str
    market: Market
    zone: str
    subnet_id: str
    subnet_cidr: str
    vpc_id: str
    security_group_ids: Sequence[str]
    profile: InstanceProfile | None
    user_data: bytes
    metadata_options: Mapping[str, Any]
    shutdown_behavior: str
    placement_group: str | None
    purchase: PurchaseOptions
    instance_tags: Mapping[str, str]
    volume_tags: Mapping[str, str]
    network_interfaces: Sequence[Mapping[str, Any]]
    block_device_mappings: Sequence[Mapping[str, Any]]
    private_address: str | None
    is_monitored: bool
    spot_max_price: str | None
    template: LaunchTemplateVersion | None
    passed_on: Mapping[str, Any] = field(default_factory=dict)

    def run_parameters(self, address: str) -> dict[str, Any]:
        """Return the RunInstances parameters for recording the instance in moto."""
        parameters: dict[str, Any] = {
            "ImageId": self.image_id, "InstanceType": self.instance_type, "MinCount": 1, "MaxCount": 1,
            "InstanceInitiatedShutdownBehavior": self.shutdown_behavior,
            "MetadataOptions": dict(self.metadata_options), **self.passed_on,
        }  # fmt: skip
        if self.user_data:
            parameters["UserData"] = self.user_data  # boto3 encodes it in base64
        if self.profile is not None:
            parameters["IamInstanceProfile"] = {"Name": self.profile.name}
        if self.block_device_mappings:
            parameters["BlockDeviceMappings"] = list(self.block_device_mappings)
        if self.volume_tags:
            tags = [{"Key": key, "Value": value} for key, value in self.volume_tags.items()]
            parameters["TagSpecifications"] = [{"ResourceType": "volume", "Tags": tags}]
        if self.network_interfaces:
            parameters["NetworkInterfaces"] = interfaces = numbered(self.network_interfaces)
            for interface in interfaces:
                if interface.get("DeviceIndex", 0) == 0 and not interface.get("NetworkInterfaceId"):
                    interface["PrivateIpAddress"] = address
                    break
        else:
            parameters |= {"SubnetId": self.subnet_id, "PrivateIpAddress": address}
            if self.security_group_ids:
                parameters["SecurityGroupIds"] = list(self.security_group_ids)
        return parameters


class LaunchResolver:
    """Resolves launch parameters against the account's resources."""

    def __init__(self, clients: Clients, types: InstanceTypes, placement: PlacementGroups) -> None:
        self._clients = clients
        self._placement = placement
        self.types = types

    def template(self, reference: Mapping[str, Any]) -> LaunchTemplateVersion:
        """Return the version named in a LaunchTemplateSpecification, by default $Default.

        Raises:
            ApiError: The template or the version does not exist.
        """
        named = {key: reference[key] for key in ("LaunchTemplateId", "LaunchTemplateName") if reference.get(key)}
        if len(named) != 1:
            raise ApiError(
                "InvalidParameterCombination",
                "Either the launch template ID or the launch template name must be specified, but not both.",
            )
        version = str(reference.get("Version") or "$Default")
        if not re.fullmatch(r"\d+|\$Latest|\$Default", version):
            raise ApiError("InvalidLaunchTemplateVersion", f"The launch template version '{version}' is not valid.")
        answer = self._ask("ec2", "describe_launch_template_versions", **named, Versions=[version])
        found = answer["LaunchTemplateVersions"][0]
        return LaunchTemplateVersion(
            found["LaunchTemplateId"], found["LaunchTemplateName"], found["VersionNumber"], found["LaunchTemplateData"]
        )

    def zone_of(self, subnet_id: str) -> str:
        """Return a subnet's zone.

        Raises:
            ApiError: The subnet does not exist.
        """
        return str(self._ask("ec2", "describe_subnets", SubnetIds=[subnet_id])["Subnets"][0]["AvailabilityZone"])

    def resolve(self, parameters: Mapping[str, Any]) -> LaunchSpecification:
        """Merge RunInstances parameters over their launch template and check every reference.

        Raises:
            ApiError: A resource does not exist, or the combination of parameters is invalid.
        """
        template = self.template(parameters["LaunchTemplate"]) if parameters.get("LaunchTemplate") else None
        merged = _merge(template.data if template else {}, parameters)
        if not merged.get("ImageId"):
            raise ApiError("MissingParameter", "The request must contain the parameter ImageId")
        subnet = self._subnet(merged)
        interfaces = _interfaces(merged, subnet["SubnetId"])
        purchase, max_price = read_purchase(merged)
        instance_type = str(merged.get("InstanceType") or "m1.small")
        check_interfaces(interfaces, instance_type, self.types.facts(instance_type))
        self._check_price(instance_type, subnet["AvailabilityZone"], max_price)
        placement = merged.get("Placement", {})
        placement_group = self._placement.resolve(placement.get("GroupName"), placement.get("GroupId"))
        if placement_group is not None:
            self._placement.check_type(placement_group, instance_type, self.types.facts(instance_type))
        data = _user_data(merged.get("UserData"))
        for mapping in merged.get("BlockDeviceMappings", []):
            volume = mapping.get("Ebs") or {}
            check_volume(volume, volume.get("VolumeSize"))
        metadata_options = _DEFAULT_METADATA_OPTIONS | dict(merged.get("MetadataOptions", {}))
        instance_tags = _tags(merged, "instance")
        if metadata_options["InstanceMetadataTags"] == "enabled":
            check_tag_keys(instance_tags)
        return LaunchSpecification(
            image_id=self._image(merged["ImageId"]),
            instance_type=instance_type,
            market=purchase.market,
            zone=subnet["AvailabilityZone"],
            subnet_id=subnet["SubnetId"],
            subnet_cidr=subnet["CidrBlock"],
            vpc_id=subnet["VpcId"],
            security_group_ids=self._security_groups(merged, interfaces, subnet["VpcId"]),
            profile=self._profile(merged.get("IamInstanceProfile")),
            user_data=data,
            metadata_options=metadata_options,
            shutdown_behavior=merged.get("InstanceInitiatedShutdownBehavior") or "stop",
            placement_group=placement_group,
            purchase=purchase,
            instance_tags=instance_tags
            | (
                {
                    "aws:ec2launchtemplate:id": template.template_id,
                    "aws:ec2launchtemplate:version": str(template.version),
                }
                if template
                else {}
            ),
            volume_tags=_tags(merged, "volume"),
            network_interfaces=interfaces,
            block_device_mappings=merged.get("BlockDeviceMappings", []),
            private_address=merged.get("PrivateIpAddress") or primary_address(interfaces),
            is_monitored=bool(merged.get("Monitoring", {}).get("Enabled")),
            spot_max_price=max_price,
            template=template,
            passed_on={name: merged[name] for name in _PASSED_ON if merged.get(name)},
        )

    def _subnet(self, merged: Mapping[str, Any]) -> Mapping[str, Any]:
        subnet_id = merged.get("SubnetId") or next(
            (one["SubnetId"] for one in merged.get("NetworkInterfaces", []) if one.get("SubnetId")), None
        )
        zone = merged.get("Placement", {}).get("AvailabilityZone")
        if subnet_id is None:
            wanted = [{"Name": "default-for-az", "Values": ["true"]}]
            if zone:
                wanted.append({"Name": "availability-zone", "Values": [zone]})
            found = self._ask("ec2", "describe_subnets", Filters=wanted)["Subnets"]
            if not found:
                raise ApiError("MissingInput", f"No default subnet for availability zone: '{zone}'.")
            return min(found, key=lambda one: one["AvailabilityZone"])
        subnet: Mapping[str, Any] = self._ask("ec2", "describe_subnets", SubnetIds=[subnet_id])["Subnets"][0]
        if zone and zone != subnet["AvailabilityZone"]:
            raise ApiError(
                "InvalidParameterValue",
                f"Value ({zone}) for parameter availabilityZone is invalid. Subnet '{subnet_id}' is in the "
                f"availability zone {subnet['AvailabilityZone']}",
            )
        return subnet

    def _check_price(self, instance_type: str, zone: str, max_price: str | None) -> None:
        if max_price is None:
            return
        lowest = self.types.spot_usd_per_hour(instance_type, zone)
        if float(max_price) < lowest:
            raise ApiError(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {max_price} is lower than the minimum required Spot request fulfillment "
                f"price of {lowest}.",
            )

    def _image(self, reference: str) -> str:
        if reference.startswith(_SSM_PREFIX):
            name = reference.removeprefix(_SSM_PREFIX)
            try:
                reference = self._clients.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
            except ClientError as error:
                raise ApiError(
                    "InvalidParameterValue",
                    f"Systems Manager parameter {name} in '{_SSM_PREFIX}{name}' cannot be resolved: "
                    f"{error.response['Error']['Message']}",
                ) from error
        if not re.fullmatch(r"ami-([0-9a-f]{8}|[0-9a-f]{17})", reference):
            raise ApiError("InvalidAMIID.Malformed", f'Invalid id: "{reference}" (expecting "ami-...")')
        if not self._ask("ec2", "describe_images", Filters=[{"Name": "image-id", "Values": [reference]}])["Images"]:
            raise ApiError("InvalidAMIID.NotFound", f"The image id '[{reference}]' does not exist")
        return reference

    def _security_groups(
        self, merged: Mapping[str, Any], interfaces: Sequence[Mapping[str, Any]], vpc_id: str
    ) -> list[str]:
        ids = list(merged.get("SecurityGroupIds", []))
        for interface in interfaces:
            ids += [one for one in interface.get("Groups", []) if one not in ids]
        if names := merged.get("SecurityGroups", []):
            filters = [{"Name": "group-name", "Values": names}, {"Name": "vpc-id", "Values": [vpc_id]}]
            found = self._ask("ec2", "describe_security_groups", Filters=filters)["SecurityGroups"]
            if missing := set(names) - {one["GroupName"] for one in found}:
                raise ApiError("InvalidGroup.NotFound", f"The security group '{min(missing)}' does not exist")
            ids += [one["GroupId"] for one in found]
        if not ids:  # Source: SecurityGroupId of RunInstances in botocore's model (1.44)
            filters = [{"Name": "group-name", "Values": ["default"]}, {"Name": "vpc-id", "Values": [vpc_id]}]
            found = self._ask("ec2", "describe_security_groups", Filters=filters)["SecurityGroups"]
            ids = [one["GroupId"] for one in found]
        else:
            for group in self._ask("ec2", "describe_security_groups", GroupIds=ids)["SecurityGroups"]:
                if group["VpcId"] != vpc_id:
                    raise ApiError(
                        "InvalidGroup.NotFound",
                        f"The security group '{group['GroupId']}' does not exist in VPC '{vpc_id}'",
                    )
        return ids

    def _profile(self, reference: Mapping[str, Any] | None) -> InstanceProfile | None:
        if not reference:
            return None
        name = reference.get("Name") or str(reference.get("Arn", "")).rpartition("/")[2]
        try:
            found = self._clients.direct("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        except ClientError as error:
            raise ApiError(
                "InvalidParameterValue",
                f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
            ) from error
        if not found["Roles"]:
            raise ApiError(
                "InvalidParameterValue", f"IAM Instance Profile '{found['Arn']}' has no associated IAM Roles"
            )
        role = found["Roles"][0]
        return InstanceProfile(
            found["InstanceProfileName"], found["Arn"], found["InstanceProfileId"], role["RoleName"], role["Arn"]
        )

    def _ask(self, service: str, operation: str, **parameters: Any) -> Any:
        try:
            return getattr(self._clients.direct(service), operation)(**parameters)
        except ClientError as error:
            raise as_api_error(error) from error


def check_tag_keys(keys: Iterable[str]) -> None:
    """Check the tags of an instance whose metadata includes them.

    Raises:
        ApiError: InvalidParameterValue for the first key that is not allowed in a metadata path.
    """
    for key in keys:
        if not re.fullmatch(_METADATA_TAG_KEY, key) or key in _RESERVED_TAG_KEYS:
            raise ApiError(
                "InvalidParameterValue",
                f"'{key}' is not a valid tag key. Tag keys must match pattern ([0-9a-zA-Z\\\\-_+=,.@:]{{1,255}}), and "
                "must not be a reserved name ('.', '..', '_index')",
            )


def _merge(template: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Override template data with request parameters. Placement, metadata options and tags are merged key by key."""
    merged = dict(template)
    for name, value in parameters.items():
        if name in ("Placement", "MetadataOptions"):
            merged[name] = dict(template.get(name, {})) | dict(value)
        elif name == "TagSpecifications":
            merged[name] = [*template.get(name, []), *value]
        else:
            merged[name] = value
    return merged


def _interfaces(merged: Mapping[str, Any], subnet_id: str) -> list[dict[str, Any]]:
    interfaces = [dict(one) for one in merged.get("NetworkInterfaces", [])]
    if interfaces and (merged.get("SecurityGroupIds") or merged.get("SecurityGroups")):
        raise ApiError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level security groups may not be specified on the same request",
        )
    for interface in interfaces:
        if not interface.get("NetworkInterfaceId"):
            interface["SubnetId"] = interface.get("SubnetId") or subnet_id
    return interfaces


def _user_data(encoded: str | None) -> bytes:
    data = user_data.decode(encoded)
    try:
        user_data.check_runnable(data)
    except UserDataError as error:
        raise ApiError("InvalidUserData.Malformed", str(error)) from error
    return data


def _tags(merged: Mapping[str, Any], resource_type: str) -> dict[str, str]:
    return {
        tag["Key"]: tag.get("Value", "")
        for specification in merged.get("TagSpecifications", [])
        if specification.get("ResourceType") == resource_type
        for tag in specification.get("Tags", [])
    }
