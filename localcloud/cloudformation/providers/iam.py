"""IAM roles, policies, instance profiles and identity providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from localcloud.cloudformation.provider import ResourceContext, ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    Resource,
    ResourceApi,
    added_removed,
    changed,
    error_code,
    error_codes,
)
from localcloud.cloudformation.providers.base.tagging import TagCalls
from localcloud.cloudformation.providers.base.waiting import wait_for


class IamResource(Resource):
    """IAM resource. IAM does not accept aws: tags and reports a missing resource as NoSuchEntity."""

    service = "iam"
    system_tags = False
    not_found_codes: ClassVar[frozenset[str]] = error_codes("NoSuchEntity")


class Role(IamResource):
    """AWS::IAM::Role with its inline and attached policies."""

    type_name = "AWS::IAM::Role"
    create_only = frozenset({"RoleName", "Path"})
    updatable = frozenset(
        {"AssumeRolePolicyDocument", "Description", "MaxSessionDuration", "PermissionsBoundary", "Tags"}
        | {"ManagedPolicyArns", "Policies"}
    )
    set_after_create = frozenset({"ManagedPolicyArns", "Policies"})
    defaults = {"Description": "", "MaxSessionDuration": 3600}
    create_call = Create("create_role")
    describe_call = Describe("get_role", "RoleName", "Role")
    name_property = "RoleName"
    tag_calls = TagCalls(identity="RoleName", add="tag_role", remove="untag_role")

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the arguments. A role without a description has an empty one."""
        return {"Description": "", **super().arguments(api, properties)}

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the changed settings and policies."""
        if changed(old, new, "AssumeRolePolicyDocument"):
            document = new["AssumeRolePolicyDocument"]
            api.call("update_assume_role_policy", RoleName=physical_id, PolicyDocument=document)
        settings = changed(old, new, "Description", "MaxSessionDuration")
        if settings:
            api.call("update_role", RoleName=physical_id, **settings)
        if changed(old, new, "PermissionsBoundary"):
            boundary = new.get("PermissionsBoundary")
            if boundary is None:
                api.call("delete_role_permissions_boundary", RoleName=physical_id)
            else:
                api.call("put_role_permissions_boundary", RoleName=physical_id, PermissionsBoundary=boundary)
        self._attach(api, physical_id, *added_removed(old, new, "ManagedPolicyArns"))
        before, after = (
            {policy["PolicyName"]: policy["PolicyDocument"] for policy in properties.get("Policies") or []}
            for properties in (old, new)
        )
        for name in set(before) - set(after):
            _call_ignoring_missing(api, "delete_role_policy", RoleName=physical_id, PolicyName=name)
        for name, document in after.items():
            if before.get(name) != document:
                api.call("put_role_policy", RoleName=physical_id, PolicyName=name, PolicyDocument=document)

    @staticmethod
    def _attach(api: ResourceApi, role: str, added: list[str], removed: list[str]) -> None:
        for arn in removed:
            # A rollback may detach a policy whose attachment failed.
            _call_ignoring_missing(api, "detach_role_policy", RoleName=role, PolicyArn=arn)
        for arn in added:
            api.call("attach_role_policy", RoleName=role, PolicyArn=arn)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN and the ID."""
        return {"Arn": found["Arn"], "RoleId": found["RoleId"]}

    def read_properties(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the trust policy, boundary and policies, except policies that other resources attach."""
        api = self.api(context)
        role = api.call("get_role", RoleName=physical_id)["Role"]
        attached = api.call("list_attached_role_policies", RoleName=physical_id)["AttachedPolicies"]
        given = [policy["PolicyName"] for policy in properties.get("Policies") or []]
        inline = api.call("list_role_policies", RoleName=physical_id)["PolicyNames"]
        own = properties.get("ManagedPolicyArns") or []
        return {
            "AssumeRolePolicyDocument": role["AssumeRolePolicyDocument"],
            "MaxSessionDuration": role.get("MaxSessionDuration", self.defaults["MaxSessionDuration"]),
            "PermissionsBoundary": role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn"),
            "ManagedPolicyArns": [
                one["PolicyArn"] for one in attached if one["PolicyArn"] in own or one["PolicyArn"] not in known_ids
            ],
            "Policies": [
                {name: api.call("get_role_policy", RoleName=physical_id, PolicyName=policy)[name] for name in _INLINE}
                for policy in inline
                if policy in given
            ],
        }

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Remove this resource's policies and delete the role. This fails if the role has other policies."""
        for arn in properties.get("ManagedPolicyArns") or []:
            _call_ignoring_missing(api, "detach_role_policy", RoleName=physical_id, PolicyArn=arn)
        for policy in properties.get("Policies") or []:
            _call_ignoring_missing(api, "delete_role_policy", RoleName=physical_id, PolicyName=policy["PolicyName"])
        api.call("delete_role", RoleName=physical_id)


_INLINE = ("PolicyName", "PolicyDocument")


def _call_ignoring_missing(api: ResourceApi, operation: str, **values: Any) -> None:
    try:
        api.call(operation, **values)
    except ClientError as error:
        if error_code(error) != "NoSuchEntity":
            raise


# For each property that lists principals: the parameter for one principal and the word used in operation names.
_PRINCIPALS = {"Roles": ("RoleName", "role"), "Users": ("UserName", "user"), "Groups": ("GroupName", "group")}


class InlinePolicy(IamResource):
    """AWS::IAM::Policy: an inline policy for roles, users and groups."""

    type_name = "AWS::IAM::Policy"
    updatable = frozenset({"PolicyName", "PolicyDocument", *_PRINCIPALS})

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Put the policy on each principal and return a generated ID."""
        if not any(properties.get(name) for name in _PRINCIPALS):
            raise ResourceFailure(f"{self.type_name}: at least one of {', '.join(_PRINCIPALS)} is required")
        self._put(api, properties)
        # Source: test_cfn_lambda_sqs_source in
        # https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation/resources.
        return api.context.generated_name(maximum_length=23)

    @staticmethod
    def _put(api: ResourceApi, properties: Properties) -> None:
        policy = {name: properties[name] for name in ("PolicyName", "PolicyDocument")}
        for name, (parameter, word) in _PRINCIPALS.items():
            for principal in properties.get(name) or []:
                api.call(f"put_{word}_policy", **{parameter: principal}, **policy)

    @staticmethod
    def _drop(api: ResourceApi, policy_name: str, principals: Mapping[str, list[str]]) -> None:
        for name, (parameter, word) in _PRINCIPALS.items():
            for principal in principals.get(name) or []:
                _call_ignoring_missing(
                    api, f"delete_{word}_policy", **{parameter: principal, "PolicyName": policy_name}
                )

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the policy on the new principals, then delete it from the old ones."""
        if old == new:
            return
        self._put(api, new)
        renamed = old["PolicyName"] != new["PolicyName"]
        removed = {name: old.get(name) or [] if renamed else added_removed(old, new, name)[1] for name in _PRINCIPALS}
        self._drop(api, old["PolicyName"], removed)

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the first principal's policy."""
        for name, (parameter, word) in _PRINCIPALS.items():
            for principal in properties.get(name) or []:
                return api.call(
                    f"get_{word}_policy", **{parameter: principal, "PolicyName": properties["PolicyName"]}
                ) | {"Id": physical_id}
        return None

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"Id": found["Id"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Delete the policy from all principals."""
        self._drop(api, properties["PolicyName"], {name: properties.get(name) or [] for name in _PRINCIPALS})


class ManagedPolicy(IamResource):
    """AWS::IAM::ManagedPolicy. The physical ID is the ARN."""

    type_name = "AWS::IAM::ManagedPolicy"
    create_only = frozenset({"ManagedPolicyName", "Description", "Path"})
    updatable = frozenset({"PolicyDocument", *_PRINCIPALS})
    set_after_create = frozenset(_PRINCIPALS)
    parameter_names = {"ManagedPolicyName": "PolicyName"}
    create_call = Create("create_policy", "Policy.Arn")
    describe_call = Describe("get_policy", "PolicyArn", "Policy")
    name_property = "ManagedPolicyName"
    name_length = 128

    def name_of(self, physical_id: str) -> str:
        """Return the ARN, which API calls use instead of the name."""
        return physical_id

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Create a default version, delete the old one and update the attachments."""
        if changed(old, new, "PolicyDocument"):
            previous = api.call("get_policy", PolicyArn=physical_id)["Policy"]["DefaultVersionId"]
            document = new["PolicyDocument"]
            api.call("create_policy_version", PolicyArn=physical_id, PolicyDocument=document, SetAsDefault=True)
            api.call("delete_policy_version", PolicyArn=physical_id, VersionId=previous)
        for name, (parameter, word) in _PRINCIPALS.items():
            added, removed = added_removed(old, new, name)
            for principal in removed:
                _call_ignoring_missing(api, f"detach_{word}_policy", **{parameter: principal, "PolicyArn": physical_id})
            for principal in added:
                api.call(f"attach_{word}_policy", **{parameter: principal, "PolicyArn": physical_id})

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN, the ID, counts and dates."""
        names = ("PolicyId", "AttachmentCount", "PermissionsBoundaryUsageCount", "DefaultVersionId", "IsAttachable")
        dates: dict[str, Any] = {
            name: found[name].isoformat() for name in ("CreateDate", "UpdateDate") if name in found
        }
        return {"PolicyArn": found["Arn"], **{name: found.get(name) for name in names}, **dates}

    def read_properties(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the default version's policy document."""
        api = self.api(context)
        version = api.call("get_policy", PolicyArn=physical_id)["Policy"]["DefaultVersionId"]
        document = api.call("get_policy_version", PolicyArn=physical_id, VersionId=version)["PolicyVersion"]["Document"]
        return {"PolicyDocument": document}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Detach the policy from its principals, delete old versions, then delete the policy."""
        self.configure(api, physical_id, {name: properties.get(name) for name in _PRINCIPALS}, {})
        for version in api.call("list_policy_versions", PolicyArn=physical_id)["Versions"]:
            if not version["IsDefaultVersion"]:
                api.call("delete_policy_version", PolicyArn=physical_id, VersionId=version["VersionId"])
        api.call("delete_policy", PolicyArn=physical_id)


class InstanceProfile(IamResource):
    """AWS::IAM::InstanceProfile."""

    type_name = "AWS::IAM::InstanceProfile"
    create_only = frozenset({"InstanceProfileName", "Path"})
    updatable = frozenset({"Roles"})
    set_after_create = frozenset({"Roles"})
    create_call = Create("create_instance_profile")
    describe_call = Describe("get_instance_profile", "InstanceProfileName", "InstanceProfile")
    name_property = "InstanceProfileName"
    name_length = 128

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Replace the role."""
        added, removed = added_removed(old, new, "Roles")
        for role in removed:
            _call_ignoring_missing(
                api, "remove_role_from_instance_profile", InstanceProfileName=physical_id, RoleName=role
            )
        for role in added:
            api.call("add_role_to_instance_profile", InstanceProfileName=physical_id, RoleName=role)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["Arn"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Remove the role from the profile and delete the profile."""
        self.configure(api, physical_id, properties, {})
        api.call("delete_instance_profile", InstanceProfileName=physical_id)


class OidcProvider(IamResource):
    """AWS::IAM::OIDCProvider. The physical ID is the ARN."""

    type_name = "AWS::IAM::OIDCProvider"
    create_only = frozenset({"Url"})
    updatable = frozenset({"ClientIdList", "ThumbprintList", "Tags"})
    create_call = Create("create_open_id_connect_provider", "OpenIDConnectProviderArn")
    describe_call = Describe("get_open_id_connect_provider", "OpenIDConnectProviderArn")
    delete_call = Delete("delete_open_id_connect_provider", "OpenIDConnectProviderArn")
    tag_calls = TagCalls(
        identity="OpenIDConnectProviderArn",
        add="tag_open_id_connect_provider",
        remove="untag_open_id_connect_provider",
    )

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the audiences and thumbprints."""
        if changed(old, new, "ThumbprintList"):
            api.call(
                "update_open_id_connect_provider_thumbprint",
                OpenIDConnectProviderArn=physical_id,
                ThumbprintList=new.get("ThumbprintList") or [],
            )
        added, removed = added_removed(old, new, "ClientIdList")
        for verb, clients in (("add", added), ("remove", removed)):
            word = "to" if verb == "add" else "from"
            for client in clients:
                call = f"{verb}_client_id_{word}_open_id_connect_provider"
                api.call(call, OpenIDConnectProviderArn=physical_id, ClientID=client)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN, which is built from the URL because the service does not return it."""
        host = str(found["Url"]).removeprefix("https://")
        return {"Arn": api.arn("iam", f"oidc-provider/{host}", region=False)}


class ServiceLinkedRole(IamResource):
    """AWS::IAM::ServiceLinkedRole. As on AWS, creation fails if the role exists."""

    type_name = "AWS::IAM::ServiceLinkedRole"
    create_only = frozenset({"AWSServiceName", "CustomSuffix"})
    updatable = frozenset({"Description"})
    create_call = Create("create_service_linked_role", "Role.RoleName")
    describe_call = Describe("get_role", "RoleName", "Role")

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the role's description."""
        if changed(old, new, "Description"):
            api.call("update_role", RoleName=physical_id, Description=new.get("Description") or "")

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the name."""
        return {"RoleName": found["RoleName"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Start the deletion and wait until it ends."""
        task = api.call("delete_service_linked_role", RoleName=physical_id)["DeletionTaskId"]

        def ended() -> bool:
            status = api.call("get_service_linked_role_deletion_status", DeletionTaskId=task)
            if status["Status"] == "FAILED":
                raise ResourceFailure(f"{physical_id}: {status.get('Reason', {}).get('Reason', 'deletion failed')}")
            return bool(status["Status"] == "SUCCEEDED")

        wait_for(ended, f"deletion of {physical_id}")


PROVIDERS = (Role(), InlinePolicy(), ManagedPolicy(), InstanceProfile(), OidcProvider(), ServiceLinkedRole())
