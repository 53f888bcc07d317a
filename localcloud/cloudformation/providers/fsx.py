"""FSx for Lustre: file systems and their data repository associations."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceFailure
from .resource import Create, Delete, Describe, Place, Properties, Resource, changed, codes
from .tagging import TagCalls

_IN_PLACE = frozenset(
    {"WeeklyMaintenanceStartTime", "DailyAutomaticBackupStartTime", "AutomaticBackupRetentionDays"}
    | {"DataCompressionType", "PerUnitStorageThroughput", "MetadataConfiguration"}
)


class FileSystem(Resource):
    """AWS::FSx::FileSystem, of type LUSTRE; what else the local cloud does not have is refused."""

    type_name = "AWS::FSx::FileSystem"
    service = "fsx"
    create_only = frozenset(
        {"KmsKeyId", "SecurityGroupIds", "FileSystemType", "SubnetIds", "FileSystemTypeVersion", "StorageType"}
    )
    updatable = frozenset({"LustreConfiguration", "StorageCapacity", "Tags"})
    undroppable = frozenset({"LustreConfiguration", "StorageCapacity"})
    creates = Create("create_file_system", "FileSystem.FileSystemId")
    describes = Describe("describe_file_systems", "FileSystemIds", "FileSystems.0", listed=True)
    deletes = Delete("delete_file_system", "FileSystemId")
    gone = codes("FileSystemNotFound")
    tag_calls = TagCalls("ResourceARN")
    system_tags = False
    ready_states = ("Lifecycle", frozenset({"AVAILABLE"}))
    gone_states = ("Lifecycle", frozenset({"DELETED"}))

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change size and settings; what a file system keeps for life is refused in words."""
        before, after = old.get("LustreConfiguration") or {}, new.get("LustreConfiguration") or {}
        settings = changed(before, after, *{*before, *after})
        if fixed := sorted(set(settings) - _IN_PLACE):
            raise ResourceFailure(f"{self.type_name} cannot change in place: LustreConfiguration {', '.join(fixed)}")
        arguments = changed(old, new, "StorageCapacity")
        if settings:
            arguments["LustreConfiguration"] = settings
        if arguments:
            at.call("update_file_system", FileSystemId=physical_id, **arguments)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return where the file system is mounted from."""
        return {
            "Id": found["FileSystemId"],
            "DNSName": found["DNSName"],
            "LustreMountName": found["LustreConfiguration"]["MountName"],
            "ResourceARN": found["ResourceARN"],
        }

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return at.arn("fsx", f"file-system/{physical_id}")


class DataRepositoryAssociation(Resource):
    """AWS::FSx::DataRepositoryAssociation."""

    type_name = "AWS::FSx::DataRepositoryAssociation"
    service = "fsx"
    create_only = frozenset({"FileSystemId", "FileSystemPath", "DataRepositoryPath", "BatchImportMetaDataOnCreate"})
    updatable = frozenset({"ImportedFileChunkSize", "S3", "Tags"})
    undroppable = frozenset({"ImportedFileChunkSize", "S3"})
    creates = Create("create_data_repository_association", "Association.AssociationId")
    describes = Describe("describe_data_repository_associations", "AssociationIds", "Associations.0", listed=True)
    deletes = Delete("delete_data_repository_association", "AssociationId")
    gone = codes("DataRepositoryAssociationNotFound")
    tag_calls = TagCalls("ResourceARN")
    ready_states = ("Lifecycle", frozenset({"AVAILABLE"}))
    gone_states = ("Lifecycle", frozenset({"DELETED"}))

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change chunk size and policies."""
        if settings := changed(old, new, "ImportedFileChunkSize", "S3"):
            at.call("update_data_repository_association", AssociationId=physical_id, **settings)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return id and ARN."""
        return {"AssociationId": found["AssociationId"], "ResourceARN": found["ResourceARN"]}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return at.arn("fsx", f"association/{properties['FileSystemId']}/{physical_id}")


PROVIDERS = (FileSystem(), DataRepositoryAssociation())
