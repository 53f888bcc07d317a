"""FSx for Lustre: file systems and their data repository associations."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    Resource,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.tagging import TagCalls

_IN_PLACE = frozenset(
    {"WeeklyMaintenanceStartTime", "DailyAutomaticBackupStartTime", "AutomaticBackupRetentionDays"}
    | {"DataCompressionType", "PerUnitStorageThroughput", "MetadataConfiguration"}
)


class FileSystem(Resource):
    """AWS::FSx::FileSystem of type LUSTRE. The service rejects other types."""

    type_name = "AWS::FSx::FileSystem"
    service = "fsx"
    create_only = frozenset(
        {"KmsKeyId", "SecurityGroupIds", "FileSystemType", "SubnetIds", "FileSystemTypeVersion", "StorageType"}
    )
    updatable = frozenset({"LustreConfiguration", "StorageCapacity", "Tags"})
    unremovable = frozenset({"LustreConfiguration", "StorageCapacity"})
    create_call = Create("create_file_system", "FileSystem.FileSystemId")
    describe_call = Describe("describe_file_systems", "FileSystemIds", "FileSystems.0", listed=True)
    delete_call = Delete("delete_file_system", "FileSystemId")
    not_found_codes = error_codes("FileSystemNotFound")
    tag_calls = TagCalls("ResourceARN")
    system_tags = False
    ready_states = ("Lifecycle", frozenset({"AVAILABLE"}))
    deleted_states = ("Lifecycle", frozenset({"DELETED"}))

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the capacity and the settings that can change.

        Raises:
            ResourceFailure: A changed setting cannot be updated in place.
        """
        before, after = old.get("LustreConfiguration") or {}, new.get("LustreConfiguration") or {}
        settings = changed(before, after, *{*before, *after})
        if fixed := sorted(set(settings) - _IN_PLACE):
            raise ResourceFailure(
                f"{self.type_name}: properties cannot change in place: LustreConfiguration {', '.join(fixed)}"
            )
        arguments = changed(old, new, "StorageCapacity")
        if settings:
            arguments["LustreConfiguration"] = settings
        if arguments:
            api.call("update_file_system", FileSystemId=physical_id, **arguments)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID, the ARN and the names for mounting the file system."""
        return {
            "Id": found["FileSystemId"],
            "DNSName": found["DNSName"],
            "LustreMountName": found["LustreConfiguration"]["MountName"],
            "ResourceARN": found["ResourceARN"],
        }

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return api.arn("fsx", f"file-system/{physical_id}")


class DataRepositoryAssociation(Resource):
    """AWS::FSx::DataRepositoryAssociation."""

    type_name = "AWS::FSx::DataRepositoryAssociation"
    service = "fsx"
    create_only = frozenset({"FileSystemId", "FileSystemPath", "DataRepositoryPath", "BatchImportMetaDataOnCreate"})
    updatable = frozenset({"ImportedFileChunkSize", "S3", "Tags"})
    unremovable = frozenset({"ImportedFileChunkSize", "S3"})
    create_call = Create("create_data_repository_association", "Association.AssociationId")
    describe_call = Describe("describe_data_repository_associations", "AssociationIds", "Associations.0", listed=True)
    delete_call = Delete("delete_data_repository_association", "AssociationId")
    not_found_codes = error_codes("DataRepositoryAssociationNotFound")
    tag_calls = TagCalls("ResourceARN")
    ready_states = ("Lifecycle", frozenset({"AVAILABLE"}))
    deleted_states = ("Lifecycle", frozenset({"DELETED"}))

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the chunk size and the import and export policies."""
        if settings := changed(old, new, "ImportedFileChunkSize", "S3"):
            api.call("update_data_repository_association", AssociationId=physical_id, **settings)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID and the ARN."""
        return {"AssociationId": found["AssociationId"], "ResourceARN": found["ResourceARN"]}

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return api.arn("fsx", f"association/{properties['FileSystemId']}/{physical_id}")


PROVIDERS = (FileSystem(), DataRepositoryAssociation())
