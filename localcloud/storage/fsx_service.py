"""FSx for Lustre: file systems with their network interfaces, and data repository associations.

A file system is only a record with a DNS name and a mount name. `lustre` validates requests.
"""

from __future__ import annotations

import copy
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Clients, Handler, Service
from localcloud.compute.describe import page, timestamp
from localcloud.storage.lustre import (
    DEFAULT_VERSIONS,
    GROWTH_INTERVAL_SECONDS,
    association_problems,
    capacity_problems,
    growth_problems,
    metadata_problems,
    problems,
    throughput_problems,
)

_UPDATABLE = frozenset(
    {"WeeklyMaintenanceStartTime", "DailyAutomaticBackupStartTime", "AutomaticBackupRetentionDays", "LogConfiguration"}
    | {"DataCompressionType", "PerUnitStorageThroughput", "RootSquashConfiguration", "MetadataConfiguration"}
)


class FsxService(Service):
    """api.Service for FSx."""

    name = "fsx"

    def __init__(self, clients: Clients, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._clock = clock
        self._lock = threading.RLock()
        self._systems: dict[str, dict[str, Any]] = {}
        self._associations: dict[str, dict[str, Any]] = {}
        self._grown: dict[str, float] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "CreateFileSystem": self.create,
            "UpdateFileSystem": self.update,
            "DescribeFileSystems": self.describe,
            "DeleteFileSystem": self.delete,
            "CreateDataRepositoryAssociation": self.associate,
            "UpdateDataRepositoryAssociation": self.update_association,
            "DescribeDataRepositoryAssociations": self.describe_associations,
            "DeleteDataRepositoryAssociation": self.dissociate,
            "TagResource": self.tag,
            "UntagResource": self.untag,
            "ListTagsForResource": self.tags,
        }

    def create(self, call: Call) -> Mapping[str, Any]:
        """Handle CreateFileSystem."""
        asked = call.parameters
        if asked["FileSystemType"] != "LUSTRE":
            raise ApiError("UnsupportedOperation", f"FileSystemType {asked['FileSystemType']} is not emulated")
        if found := problems(asked):
            raise ApiError("BadRequest", "; ".join(found))
        lustre = copy.deepcopy(dict(asked.get("LustreConfiguration") or {}))
        lustre.setdefault("DeploymentType", "SCRATCH_1")
        lustre.setdefault("DataCompressionType", "NONE")
        lustre["MountName"] = "fsx" if lustre["DeploymentType"] == "SCRATCH_1" else secrets.token_hex(4)
        system_id = f"fs-{secrets.token_hex(9)[:17]}"
        interface = self._interface(asked, system_id)
        system: dict[str, Any] = {
            "FileSystemId": system_id, "OwnerId": call.account, "CreationTime": timestamp(self._clock()),
            "FileSystemType": "LUSTRE", "Lifecycle": "AVAILABLE", "StorageCapacity": asked["StorageCapacity"],
            "StorageType": asked.get("StorageType", "SSD"), "VpcId": interface["VpcId"],
            "SubnetIds": list(asked["SubnetIds"]), "NetworkInterfaceIds": [interface["NetworkInterfaceId"]],
            "DNSName": f"{system_id}.fsx.{call.region}.amazonaws.com",
            "ResourceARN": f"arn:aws:fsx:{call.region}:{call.account}:file-system/{system_id}",
            "FileSystemTypeVersion": asked.get("FileSystemTypeVersion") or DEFAULT_VERSIONS[lustre["DeploymentType"]],
            "LustreConfiguration": lustre, "Tags": list(asked.get("Tags", [])), "NetworkType": "IPV4",
        }  # fmt: skip
        if asked.get("KmsKeyId"):
            system["KmsKeyId"] = asked["KmsKeyId"]
        with self._lock:
            self._systems[system_id] = system
        return {"FileSystem": system | {"Lifecycle": "CREATING"}}

    def _interface(self, asked: Mapping[str, Any], system_id: str) -> Mapping[str, Any]:
        groups = {"Groups": asked["SecurityGroupIds"]} if asked.get("SecurityGroupIds") else {}
        try:
            made = self._clients.direct("ec2").create_network_interface(
                SubnetId=asked["SubnetIds"][0], Description=f"Amazon FSx network interface for {system_id}", **groups
            )
        except ClientError as error:
            raise ApiError("InvalidNetworkSettings", error.response["Error"]["Message"]) from error
        interface: Mapping[str, Any] = made["NetworkInterface"]
        return interface

    def update(self, call: Call) -> Mapping[str, Any]:
        """Handle UpdateFileSystem: change the capacity, throughput, compression, maintenance windows or logs."""
        changes = call.parameters
        with self._lock:
            system = self._system(changes["FileSystemId"])
            lustre, new = system["LustreConfiguration"], dict(changes.get("LustreConfiguration") or {})
            deployment, kind = lustre["DeploymentType"], system["StorageType"]
            found = [f"{one} cannot be changed" for one in sorted(set(new) - _UPDATABLE)]
            if "PerUnitStorageThroughput" in new:
                found += throughput_problems(new["PerUnitStorageThroughput"], deployment, kind)
            capacity = changes.get("StorageCapacity")
            if capacity is not None and capacity != system["StorageCapacity"]:
                found += capacity_problems(capacity, deployment, kind, lustre | new)
                found += growth_problems(capacity, system["StorageCapacity"], deployment)
                since = self._clock() - self._grown.get(system["FileSystemId"], 0.0)
                if since < GROWTH_INTERVAL_SECONDS:
                    found.append("StorageCapacity was changed less than 6 hours ago")
            found += metadata_problems(lustre.get("MetadataConfiguration"), new.get("MetadataConfiguration"))
            if found:
                raise ApiError("BadRequest", "; ".join(found))
            lustre |= new
            if capacity is not None and capacity != system["StorageCapacity"]:
                system["StorageCapacity"] = capacity
                self._grown[system["FileSystemId"]] = self._clock()
            return {"FileSystem": copy.deepcopy(system)}

    def describe(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeFileSystems."""
        with self._lock:
            named = [self._system(one) for one in call.parameters.get("FileSystemIds", [])]
            shown = copy.deepcopy(named or list(self._systems.values()))
        return page(shown, call.parameters, "FileSystems")

    def delete(self, call: Call) -> Mapping[str, Any]:
        """Handle DeleteFileSystem: also delete the file system's associations and network interface."""
        with self._lock:
            system = self._system(call.parameters["FileSystemId"])
            for key in [
                key for key, one in self._associations.items() if one["FileSystemId"] == system["FileSystemId"]
            ]:
                del self._associations[key]
            del self._systems[system["FileSystemId"]]
        for interface_id in system["NetworkInterfaceIds"]:
            self._clients.direct("ec2").delete_network_interface(NetworkInterfaceId=interface_id)
        return {"FileSystemId": system["FileSystemId"], "Lifecycle": "DELETING"}

    def associate(self, call: Call) -> Mapping[str, Any]:
        """Handle CreateDataRepositoryAssociation."""
        asked = call.parameters
        with self._lock:
            system = self._system(asked["FileSystemId"])
            mine = [one for one in self._associations.values() if one["FileSystemId"] == system["FileSystemId"]]
            deployment = system["LustreConfiguration"]["DeploymentType"]
            found = association_problems(deployment, system["FileSystemTypeVersion"], len(mine))
            path = str(asked.get("FileSystemPath") or "/").rstrip("/") or "/"
            for one in mine:
                other = one["FileSystemPath"]
                if f"{path}/".startswith(f"{other.rstrip('/')}/") or f"{other}/".startswith(f"{path.rstrip('/')}/"):
                    found.append(f"FileSystemPath {path} overlaps {other} in {one['AssociationId']}")
                if one["DataRepositoryPath"].rstrip("/") == asked["DataRepositoryPath"].rstrip("/"):
                    found.append(f"DataRepositoryPath is already used by {one['AssociationId']}")
            if not asked["DataRepositoryPath"].startswith("s3://"):
                found.append(f"DataRepositoryPath {asked['DataRepositoryPath']} must start with s3://")
            if found:
                raise ApiError("BadRequest", "; ".join(found))
            self._check_bucket(asked["DataRepositoryPath"])
            association_id = f"dra-{secrets.token_hex(9)[:17]}"
            arn = f"arn:aws:fsx:{call.region}:{call.account}:association/{system['FileSystemId']}/{association_id}"
            made: dict[str, Any] = {
                "AssociationId": association_id, "ResourceARN": arn, "FileSystemId": system["FileSystemId"],
                "Lifecycle": "AVAILABLE", "FileSystemPath": path, "DataRepositoryPath": asked["DataRepositoryPath"],
                "BatchImportMetaDataOnCreate": bool(asked.get("BatchImportMetaDataOnCreate")),
                "ImportedFileChunkSize": asked.get("ImportedFileChunkSize", 1024), "S3": dict(asked.get("S3") or {}),
                "Tags": list(asked.get("Tags", [])), "CreationTime": timestamp(self._clock()),
            }  # fmt: skip
            self._associations[association_id] = made
            return {"Association": made | {"Lifecycle": "CREATING"}}

    def _check_bucket(self, path: str) -> None:
        bucket = path.removeprefix("s3://").partition("/")[0]
        try:
            self._clients.direct("s3").head_bucket(Bucket=bucket)
        except ClientError as error:
            raise ApiError("BadRequest", f"DataRepositoryPath: the bucket {bucket} does not exist") from error

    def update_association(self, call: Call) -> Mapping[str, Any]:
        """Handle UpdateDataRepositoryAssociation."""
        with self._lock:
            found = self._association(call.parameters["AssociationId"])
            found |= {name: call.parameters[name] for name in ("ImportedFileChunkSize", "S3")
                      if name in call.parameters}  # fmt: skip
            return {"Association": copy.deepcopy(found)}

    def describe_associations(self, call: Call) -> Mapping[str, Any]:
        """Handle DescribeDataRepositoryAssociations."""
        wanted = {one["Name"]: one["Values"] for one in call.parameters.get("Filters", [])}
        with self._lock:
            named = [self._association(one) for one in call.parameters.get("AssociationIds", [])]
            shown = copy.deepcopy(named or list(self._associations.values()))
        if "file-system-id" in wanted:
            shown = [one for one in shown if one["FileSystemId"] in wanted["file-system-id"]]
        return page(shown, call.parameters, "Associations")

    def dissociate(self, call: Call) -> Mapping[str, Any]:
        """Handle DeleteDataRepositoryAssociation."""
        with self._lock:
            found = self._association(call.parameters["AssociationId"])
            del self._associations[found["AssociationId"]]
        return {"AssociationId": found["AssociationId"], "Lifecycle": "DELETING"}

    def tag(self, call: Call) -> Mapping[str, Any]:
        """Handle TagResource."""
        new = call.parameters["Tags"]
        with self._lock:
            found = self._by_arn(call.parameters["ResourceARN"])
            kept = [one for one in found["Tags"] if one["Key"] not in {tag["Key"] for tag in new}]
            found["Tags"] = [*kept, *new]
        return {}

    def untag(self, call: Call) -> Mapping[str, Any]:
        """Handle UntagResource."""
        with self._lock:
            found = self._by_arn(call.parameters["ResourceARN"])
            found["Tags"] = [one for one in found["Tags"] if one["Key"] not in call.parameters["TagKeys"]]
        return {}

    def tags(self, call: Call) -> Mapping[str, Any]:
        """Handle ListTagsForResource."""
        with self._lock:
            return page(list(self._by_arn(call.parameters["ResourceARN"])["Tags"]), call.parameters, "Tags")

    def _system(self, system_id: str) -> dict[str, Any]:
        if system_id not in self._systems:
            raise ApiError("FileSystemNotFound", f"File system '{system_id}' does not exist.")
        return self._systems[system_id]

    def _association(self, association_id: str) -> dict[str, Any]:
        if association_id not in self._associations:
            raise ApiError("DataRepositoryAssociationNotFound", f"Association '{association_id}' does not exist.")
        return self._associations[association_id]

    def _by_arn(self, arn: str) -> dict[str, Any]:
        for one in (*self._systems.values(), *self._associations.values()):
            if one["ResourceARN"] == arn:
                return one
        raise ApiError("ResourceNotFound", f"The resource {arn} does not exist.")
