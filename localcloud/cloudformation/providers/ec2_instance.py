"""EC2's machines and disks: instances, volumes, attachments."""

from __future__ import annotations

from typing import Any

from .ec2_resource import Ec2Resource
from .resource import Create, Delete, Describe, Place, Properties, added_removed, changed, codes
from .shapes import truth
from .tagging import key_values
from .waiting import wait_for

_ENDED = frozenset({"terminated"})


class Volume(Ec2Resource):
    """AWS::EC2::Volume; size and speed change in place, the rest does not."""

    type_name = "AWS::EC2::Volume"
    create_only = frozenset(
        {"AvailabilityZone", "AvailabilityZoneId", "Encrypted", "KmsKeyId", "SnapshotId", "VolumeInitializationRate"}
        | {"OutpostArn"}
    )
    updatable = frozenset({"Size", "Iops", "Throughput", "VolumeType", "MultiAttachEnabled", "Tags"})
    undroppable = frozenset({"Size", "Iops", "Throughput"})
    defaults = {"MultiAttachEnabled": False, "VolumeType": "gp2"}
    creates = Create("create_volume", "VolumeId")
    describes = Describe("describe_volumes", "VolumeIds", "Volumes.0", listed=True)
    deletes = Delete("delete_volume", "VolumeId")
    gone = codes("InvalidVolume.NotFound")
    tag_kind = "volume"
    ready_states = ("State", frozenset({"available", "in-use"}))
    gone_states = ("State", frozenset({"deleted"}))

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Modify the volume and wait until it has its new size and speed."""
        settings = changed(old, new, "Size", "Iops", "Throughput", "VolumeType", "MultiAttachEnabled")
        if settings:
            at.call("modify_volume", VolumeId=physical_id, **settings)
            wait_for(lambda: self._modified(at, physical_id), f"modification of {physical_id}")

    @staticmethod
    def _modified(at: Place, physical_id: str) -> bool:
        states = at.call("describe_volumes_modifications", VolumeIds=[physical_id])["VolumesModifications"]
        return all(item["ModificationState"] in {"optimizing", "completed"} for item in states)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"VolumeId": found["VolumeId"]}


class VolumeAttachment(Ec2Resource):
    """AWS::EC2::VolumeAttachment; its id is `<volume>|<instance>`."""

    type_name = "AWS::EC2::VolumeAttachment"
    create_only = frozenset({"Device", "InstanceId", "VolumeId"})
    gone = codes("InvalidAttachment.NotFound", "InvalidVolume.NotFound", "IncorrectState")
    ready_states = ("State", frozenset({"attached"}))
    gone_states = ("State", frozenset({"detached"}))

    def make(self, at: Place, properties: Properties) -> str:
        """Attach the volume."""
        at.call("attach_volume", **properties)
        return f"{properties['VolumeId']}|{properties['InstanceId']}"

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the attachment at its volume."""
        volume, instance = physical_id.split("|")
        volumes = at.call("describe_volumes", VolumeIds=[volume])["Volumes"]
        links = [link for item in volumes for link in item["Attachments"]]
        return next((link for link in links if link["InstanceId"] == instance), None)

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Detach the volume."""
        if self.found(at, physical_id, properties) is not None:
            at.call("detach_volume", VolumeId=properties["VolumeId"], InstanceId=properties["InstanceId"])


_PLACEMENT = {
    "AvailabilityZone": "AvailabilityZone",
    "PlacementGroupName": "GroupName",
    "Tenancy": "Tenancy",
    "Affinity": "Affinity",
    "HostId": "HostId",
}
# Property: the parameter of ModifyInstanceAttribute that takes it, and whether it takes it bare.
_ATTRIBUTES = {
    "DisableApiTermination": ("DisableApiTermination", False),
    "InstanceInitiatedShutdownBehavior": ("InstanceInitiatedShutdownBehavior", False),
    "SourceDestCheck": ("SourceDestCheck", False),
    "SecurityGroupIds": ("Groups", True),
}
_STOPPED_ATTRIBUTES = {
    "InstanceType": ("InstanceType", False),
    "UserData": ("UserData", False),
    "EbsOptimized": ("EbsOptimized", False),
}


class Instance(Ec2Resource):
    """AWS::EC2::Instance; changes of type, user data or EBS optimisation stop and start it."""

    type_name = "AWS::EC2::Instance"
    create_only = frozenset(
        {"ImageId", "KeyName", "LaunchTemplate", "NetworkInterfaces", "PrivateIpAddress", "SubnetId", "CpuOptions"}
        | {"EnclaveOptions", "HibernationOptions", "BlockDeviceMappings", "MetadataOptions", "CreditSpecification"}
        | {"PropagateTagsToVolumeOnCreation", *_PLACEMENT}
    )
    updatable = frozenset({*_ATTRIBUTES, *_STOPPED_ATTRIBUTES, "Monitoring", "IamInstanceProfile", "Volumes", "Tags"})
    afterwards = frozenset({"SourceDestCheck", "Volumes"})
    undroppable = frozenset({"InstanceType", "SecurityGroupIds"})
    defaults = {
        "DisableApiTermination": False,
        "InstanceInitiatedShutdownBehavior": "stop",
        "SourceDestCheck": True,
        "Monitoring": False,
        "EbsOptimized": False,
        "UserData": "",
    }
    creates = Create("run_instances", "Instances.0.InstanceId")
    describes = Describe("describe_instances", "InstanceIds", "Reservations.0.Instances.0", listed=True)
    deletes = Delete("terminate_instances", "InstanceIds", listed=True)
    gone = codes("InvalidInstanceID.NotFound")
    tag_kind = "instance"
    ready_states = ("State.Name", frozenset({"running"}))
    gone_states = ("State.Name", _ENDED)

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the launch of one instance: placement gathered, names wrapped."""
        arguments = super().arguments(at, properties) | {"MinCount": 1, "MaxCount": 1}
        arguments.pop("PropagateTagsToVolumeOnCreation", None)
        placement = {_PLACEMENT[name]: arguments.pop(name) for name in _PLACEMENT if name in arguments}
        if placement:
            arguments["Placement"] = placement
        if "Monitoring" in arguments:
            arguments["Monitoring"] = {"Enabled": arguments["Monitoring"]}
        if "IamInstanceProfile" in arguments:
            arguments["IamInstanceProfile"] = {"Name": arguments["IamInstanceProfile"]}
        if "NetworkInterfaces" in arguments:
            arguments["NetworkInterfaces"] = [
                {{"GroupSet": "Groups"}.get(name, name): value for name, value in interface.items()}
                for interface in arguments["NetworkInterfaces"]
            ]
        return arguments

    def creation_tags(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return tag specifications for the instance, and for its volumes when asked for."""
        specifications = super().creation_tags(at, properties)
        if specifications and truth(properties.get("PropagateTagsToVolumeOnCreation", False)):
            tags = key_values(self.wanted_tags(at.context, properties))
            specifications["TagSpecifications"].append({"ResourceType": "volume", "Tags": tags})
        return specifications

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change attributes, stopping the instance where EC2 wants that."""
        for name, value in changed(old, new, *_ATTRIBUTES).items():
            self._set(at, physical_id, *_ATTRIBUTES[name], value)
        if stopped := changed(old, new, *_STOPPED_ATTRIBUTES):
            at.call("stop_instances", InstanceIds=[physical_id])
            self._wait(at, physical_id, "stopped")
            for name, value in stopped.items():
                self._set(at, physical_id, *_STOPPED_ATTRIBUTES[name], value)
            at.call("start_instances", InstanceIds=[physical_id])
        if changed(old, new, "Monitoring"):
            verb = "monitor" if truth(new.get("Monitoring", False)) else "unmonitor"
            at.call(f"{verb}_instances", InstanceIds=[physical_id])
        if changed(old, new, "IamInstanceProfile"):
            self._exchange_profile(at, physical_id, new.get("IamInstanceProfile"))
        come, went = added_removed(old, new, "Volumes")
        for volume in went:
            at.call("detach_volume", VolumeId=volume["VolumeId"], InstanceId=physical_id)
        for volume in come:
            at.call("attach_volume", InstanceId=physical_id, **volume)

    def _wait(self, at: Place, physical_id: str, state: str) -> None:
        def there() -> bool:
            return bool((self.found(at, physical_id, {}) or {}).get("State", {}).get("Name") == state)

        wait_for(there, f"{physical_id} to be {state}", timeout_seconds=self.settle_seconds)

    @staticmethod
    def _set(at: Place, physical_id: str, parameter: str, bare: bool, value: Any) -> None:
        at.call("modify_instance_attribute", InstanceId=physical_id, **{parameter: value if bare else {"Value": value}})

    @staticmethod
    def _exchange_profile(at: Place, physical_id: str, profile: str | None) -> None:
        mine = [{"Name": "instance-id", "Values": [physical_id]}]
        links = at.call("describe_iam_instance_profile_associations", Filters=mine)["IamInstanceProfileAssociations"]
        if links and profile:
            association, wanted = links[0]["AssociationId"], {"Name": profile}
            at.call("replace_iam_instance_profile_association", AssociationId=association, IamInstanceProfile=wanted)
        elif links:
            at.call("disassociate_iam_instance_profile", AssociationId=links[0]["AssociationId"])
        elif profile:
            at.call("associate_iam_instance_profile", InstanceId=physical_id, IamInstanceProfile={"Name": profile})

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return addresses, place and state."""
        return {
            "InstanceId": found["InstanceId"],
            "PrivateIp": found.get("PrivateIpAddress"),
            "PublicIp": found.get("PublicIpAddress", ""),
            "PrivateDnsName": found.get("PrivateDnsName"),
            "PublicDnsName": found.get("PublicDnsName", ""),
            "VpcId": found.get("VpcId"),
            "AvailabilityZone": found.get("Placement", {}).get("AvailabilityZone"),
            "State.Code": found["State"]["Code"],
            "State.Name": found["State"]["Name"],
        }


PROVIDERS = (Volume(), VolumeAttachment(), Instance())
