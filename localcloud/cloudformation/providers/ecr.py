"""ECR: image repositories."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.providers.base.resource import (
    Create,
    Describe,
    Properties,
    Resource,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.shapes import parse_bool
from localcloud.cloudformation.providers.base.tagging import TagCalls


class Repository(Resource):
    """AWS::ECR::Repository. A repository that contains images can only be deleted if EmptyOnDelete is set."""

    type_name = "AWS::ECR::Repository"
    service = "ecr"
    create_only = frozenset({"RepositoryName", "EncryptionConfiguration"})
    updatable = frozenset(
        {"ImageTagMutability", "ImageScanningConfiguration", "LifecyclePolicy", "RepositoryPolicyText"}
        | {"EmptyOnDelete", "Tags"}
    )
    set_after_create = frozenset({"LifecyclePolicy", "RepositoryPolicyText", "EmptyOnDelete"})
    defaults = {"ImageTagMutability": "MUTABLE", "ImageScanningConfiguration": {"ScanOnPush": False}}
    create_call = Create("create_repository")
    describe_call = Describe("describe_repositories", "repositoryNames", "repositories.0", listed=True)
    not_found_codes = error_codes("RepositoryNotFoundException")
    name_property = "RepositoryName"
    name_length = 256
    tag_calls = TagCalls(identity="resourceArn")

    def with_name(self, api: ResourceApi, properties: Properties) -> Properties:
        """Return the properties with a lower-case name."""
        name = properties.get("RepositoryName") or api.context.generated_name(maximum_length=256, lower_case=True)
        return {**properties, "RepositoryName": name}

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Put or delete the changed settings."""
        calls = {
            "ImageTagMutability": "put_image_tag_mutability",
            "ImageScanningConfiguration": "put_image_scanning_configuration",
        }
        for name, value in changed(old, new, *calls).items():
            api.call(calls[name], RepositoryName=physical_id, **{name: value})
        if changed(old, new, "RepositoryPolicyText"):
            policy = new.get("RepositoryPolicyText")
            if policy is None:
                api.call("delete_repository_policy", RepositoryName=physical_id)
            else:
                api.call("set_repository_policy", RepositoryName=physical_id, PolicyText=policy)
        if changed(old, new, "LifecyclePolicy"):
            rules = new.get("LifecyclePolicy")
            if rules is None:
                api.call("delete_lifecycle_policy", RepositoryName=physical_id)
            else:
                api.call("put_lifecycle_policy", RepositoryName=physical_id, **rules)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN and the URI."""
        return {"Arn": found["repositoryArn"], "RepositoryUri": found["repositoryUri"]}

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return api.arn("ecr", f"repository/{physical_id}")

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Delete the repository."""
        force = parse_bool(properties.get("EmptyOnDelete", False))
        api.call("delete_repository", RepositoryName=physical_id, Force=force)


PROVIDERS = (Repository(),)
