"""ECR: image repositories."""

from __future__ import annotations

from typing import Any

from .resource import Create, Describe, Place, Properties, Resource, changed, codes
from .shapes import truth
from .tagging import TagCalls


class Repository(Resource):
    """AWS::ECR::Repository; one that holds images is only deleted with EmptyOnDelete."""

    type_name = "AWS::ECR::Repository"
    service = "ecr"
    create_only = frozenset({"RepositoryName", "EncryptionConfiguration"})
    updatable = frozenset(
        {"ImageTagMutability", "ImageScanningConfiguration", "LifecyclePolicy", "RepositoryPolicyText"}
        | {"EmptyOnDelete", "Tags"}
    )
    afterwards = frozenset({"LifecyclePolicy", "RepositoryPolicyText", "EmptyOnDelete"})
    defaults = {"ImageTagMutability": "MUTABLE", "ImageScanningConfiguration": {"ScanOnPush": False}}
    creates = Create("create_repository")
    describes = Describe("describe_repositories", "repositoryNames", "repositories.0", listed=True)
    gone = codes("RepositoryNotFoundException")
    name_property = "RepositoryName"
    name_length = 256
    tag_calls = TagCalls(identity="resourceArn")

    def named(self, at: Place, properties: Properties) -> Properties:
        """Return a name in lower case."""
        name = properties.get("RepositoryName") or at.context.generated_name(maximum_length=256, lower_case=True)
        return {**properties, "RepositoryName": name}

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put or delete what differs."""
        calls = {
            "ImageTagMutability": "put_image_tag_mutability",
            "ImageScanningConfiguration": "put_image_scanning_configuration",
        }
        for name, value in changed(old, new, *calls).items():
            at.call(calls[name], RepositoryName=physical_id, **{name: value})
        if changed(old, new, "RepositoryPolicyText"):
            policy = new.get("RepositoryPolicyText")
            if policy is None:
                at.call("delete_repository_policy", RepositoryName=physical_id)
            else:
                at.call("set_repository_policy", RepositoryName=physical_id, PolicyText=policy)
        if changed(old, new, "LifecyclePolicy"):
            rules = new.get("LifecyclePolicy")
            if rules is None:
                at.call("delete_lifecycle_policy", RepositoryName=physical_id)
            else:
                at.call("put_lifecycle_policy", RepositoryName=physical_id, **rules)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN and URI."""
        return {"Arn": found["repositoryArn"], "RepositoryUri": found["repositoryUri"]}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return at.arn("ecr", f"repository/{physical_id}")

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the repository."""
        force = truth(properties.get("EmptyOnDelete", False))
        at.call("delete_repository", RepositoryName=physical_id, Force=force)


PROVIDERS = (Repository(),)
