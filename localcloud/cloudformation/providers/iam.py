"""IAM: roles, policies, instance profiles, identity providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from ..provider import ResourceContext, ResourceFailure
from .resource import Create, Delete, Describe, Place, Properties, Resource, added_removed, changed, code_of, codes
from .tagging import TagCalls
from .waiting import wait_for


class IamResource(Resource):
    """A resource of IAM: aws: tags are not for it, NoSuchEntity is gone."""

    service = "iam"
    system_tags = False
    gone: ClassVar[frozenset[str]] = codes("NoSuchEntity")


class Role(IamResource):
    """AWS::IAM::Role with its inline and attached policies."""

    type_name = "AWS::IAM::Role"
    create_only = frozenset({"RoleName", "Path"})
    updatable = frozenset(
        {"AssumeRolePolicyDocument", "Description", "MaxSessionDuration", "PermissionsBoundary", "Tags"}
        | {"ManagedPolicyArns", "Policies"}
    )
    afterwards = frozenset({"ManagedPolicyArns", "Policies"})
    defaults = {"Description": "", "MaxSessionDuration": 3600}
    creates = Create("create_role")
    describes = Describe("get_role", "RoleName", "Role")
    name_property = "RoleName"
    tag_calls = TagCalls(identity="RoleName", add="tag_role", remove="untag_role")

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change what differs."""
        if changed(old, new, "AssumeRolePolicyDocument"):
            document = new["AssumeRolePolicyDocument"]
            at.call("update_assume_role_policy", RoleName=physical_id, PolicyDocument=document)
        settings = changed(old, new, "Description", "MaxSessionDuration")
        if settings:
            at.call("update_role", RoleName=physical_id, **settings)
        if changed(old, new, "PermissionsBoundary"):
            boundary = new.get("PermissionsBoundary")
            if boundary is None:
                at.call("delete_role_permissions_boundary", RoleName=physical_id)
            else:
                at.call("put_role_permissions_boundary", RoleName=physical_id, PermissionsBoundary=boundary)
        self._attach(at, physical_id, *added_removed(old, new, "ManagedPolicyArns"))
        before, after = (
            {policy["PolicyName"]: policy["PolicyDocument"] for policy in properties.get("Policies") or []}
            for properties in (old, new)
        )
        for name in set(before) - set(after):
            _ignoring_gone(at, "delete_role_policy", RoleName=physical_id, PolicyName=name)
        for name, document in after.items():
            if before.get(name) != document:
                at.call("put_role_policy", RoleName=physical_id, PolicyName=name, PolicyDocument=document)

    @staticmethod
    def _attach(at: Place, role: str, added: list[str], removed: list[str]) -> None:
        for arn in removed:
            # A roll-back takes off what may never have come on.
            _ignoring_gone(at, "detach_role_policy", RoleName=role, PolicyArn=arn)
        for arn in added:
            at.call("attach_role_policy", RoleName=role, PolicyArn=arn)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN and id."""
        return {"Arn": found["Arn"], "RoleId": found["RoleId"]}

    def actual(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return trust, boundary and policies; one that another resource attaches is that resource's."""
        at = self.place(context)
        role = at.call("get_role", RoleName=physical_id)["Role"]
        attached = at.call("list_attached_role_policies", RoleName=physical_id)["AttachedPolicies"]
        given = [policy["PolicyName"] for policy in properties.get("Policies") or []]
        inline = at.call("list_role_policies", RoleName=physical_id)["PolicyNames"]
        own = properties.get("ManagedPolicyArns") or []
        return {
            "AssumeRolePolicyDocument": role["AssumeRolePolicyDocument"],
            "MaxSessionDuration": role.get("MaxSessionDuration", self.defaults["MaxSessionDuration"]),
            "PermissionsBoundary": role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn"),
            "ManagedPolicyArns": [
                one["PolicyArn"] for one in attached if one["PolicyArn"] in own or one["PolicyArn"] not in known_ids
            ],
            "Policies": [
                {name: at.call("get_role_policy", RoleName=physical_id, PolicyName=policy)[name] for name in _INLINE}
                for policy in inline
                if policy in given
            ],
        }

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Take off this resource's own policies, then delete the role; a policy of somebody else's keeps it."""
        for arn in properties.get("ManagedPolicyArns") or []:
            _ignoring_gone(at, "detach_role_policy", RoleName=physical_id, PolicyArn=arn)
        for policy in properties.get("Policies") or []:
            _ignoring_gone(at, "delete_role_policy", RoleName=physical_id, PolicyName=policy["PolicyName"])
        at.call("delete_role", RoleName=physical_id)


_INLINE = ("PolicyName", "PolicyDocument")


def _ignoring_gone(at: Place, operation: str, **values: Any) -> None:
    try:
        at.call(operation, **values)
    except ClientError as error:
        if code_of(error) != "NoSuchEntity":
            raise


# Property that lists principals: the parameter that names one, and the word in the calls' names.
_PRINCIPALS = {"Roles": ("RoleName", "role"), "Users": ("UserName", "user"), "Groups": ("GroupName", "group")}


class InlinePolicy(IamResource):
    """AWS::IAM::Policy: one inline policy, put on roles, users and groups."""

    type_name = "AWS::IAM::Policy"
    updatable = frozenset({"PolicyName", "PolicyDocument", *_PRINCIPALS})

    def make(self, at: Place, properties: Properties) -> str:
        """Put the policy on each principal."""
        if not any(properties.get(name) for name in _PRINCIPALS):
            raise ResourceFailure(f"{self.type_name}: at least one of {', '.join(_PRINCIPALS)} must be given")
        self._put(at, properties)
        return at.context.generated_name(maximum_length=128)

    @staticmethod
    def _put(at: Place, properties: Properties) -> None:
        policy = {name: properties[name] for name in ("PolicyName", "PolicyDocument")}
        for name, (parameter, word) in _PRINCIPALS.items():
            for principal in properties.get(name) or []:
                at.call(f"put_{word}_policy", **{parameter: principal}, **policy)

    @staticmethod
    def _drop(at: Place, policy_name: str, principals: Mapping[str, list[str]]) -> None:
        for name, (parameter, word) in _PRINCIPALS.items():
            for principal in principals.get(name) or []:
                _ignoring_gone(at, f"delete_{word}_policy", **{parameter: principal, "PolicyName": policy_name})

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the policy where it belongs now, then take it off where it does not."""
        if old == new:
            return
        self._put(at, new)
        renamed = old["PolicyName"] != new["PolicyName"]
        gone = {name: old.get(name) or [] if renamed else added_removed(old, new, name)[1] for name in _PRINCIPALS}
        self._drop(at, old["PolicyName"], gone)

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the policy from the first principal."""
        for name, (parameter, word) in _PRINCIPALS.items():
            for principal in properties.get(name) or []:
                return at.call(
                    f"get_{word}_policy", **{parameter: principal, "PolicyName": properties["PolicyName"]}
                ) | {"Id": physical_id}
        return None

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"Id": found["Id"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Take the policy off everybody."""
        self._drop(at, properties["PolicyName"], {name: properties.get(name) or [] for name in _PRINCIPALS})


class ManagedPolicy(IamResource):
    """AWS::IAM::ManagedPolicy; its id is its ARN."""

    type_name = "AWS::IAM::ManagedPolicy"
    create_only = frozenset({"ManagedPolicyName", "Description", "Path"})
    updatable = frozenset({"PolicyDocument", *_PRINCIPALS})
    afterwards = frozenset(_PRINCIPALS)
    renames = {"ManagedPolicyName": "PolicyName"}
    creates = Create("create_policy", "Policy.Arn")
    describes = Describe("get_policy", "PolicyArn", "Policy")
    name_property = "ManagedPolicyName"
    name_length = 128

    def name_of(self, physical_id: str) -> str:
        """Return the ARN: the calls want that, not the name."""
        return physical_id

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Make a new default version, delete the old one, and attach where it belongs."""
        if changed(old, new, "PolicyDocument"):
            previous = at.call("get_policy", PolicyArn=physical_id)["Policy"]["DefaultVersionId"]
            document = new["PolicyDocument"]
            at.call("create_policy_version", PolicyArn=physical_id, PolicyDocument=document, SetAsDefault=True)
            at.call("delete_policy_version", PolicyArn=physical_id, VersionId=previous)
        for name, (parameter, word) in _PRINCIPALS.items():
            added, removed = added_removed(old, new, name)
            for principal in removed:
                _ignoring_gone(at, f"detach_{word}_policy", **{parameter: principal, "PolicyArn": physical_id})
            for principal in added:
                at.call(f"attach_{word}_policy", **{parameter: principal, "PolicyArn": physical_id})

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN, id, counts and dates."""
        names = ("PolicyId", "AttachmentCount", "PermissionsBoundaryUsageCount", "DefaultVersionId", "IsAttachable")
        dates: dict[str, Any] = {
            name: found[name].isoformat() for name in ("CreateDate", "UpdateDate") if name in found
        }
        return {"PolicyArn": found["Arn"], **{name: found.get(name) for name in names}, **dates}

    def actual(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the document of the default version."""
        at = self.place(context)
        version = at.call("get_policy", PolicyArn=physical_id)["Policy"]["DefaultVersionId"]
        document = at.call("get_policy_version", PolicyArn=physical_id, VersionId=version)["PolicyVersion"]["Document"]
        return {"PolicyDocument": document}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Detach from this resource's principals, delete old versions, delete the policy."""
        self.configure(at, physical_id, {name: properties.get(name) for name in _PRINCIPALS}, {})
        for version in at.call("list_policy_versions", PolicyArn=physical_id)["Versions"]:
            if not version["IsDefaultVersion"]:
                at.call("delete_policy_version", PolicyArn=physical_id, VersionId=version["VersionId"])
        at.call("delete_policy", PolicyArn=physical_id)


class InstanceProfile(IamResource):
    """AWS::IAM::InstanceProfile."""

    type_name = "AWS::IAM::InstanceProfile"
    create_only = frozenset({"InstanceProfileName", "Path"})
    updatable = frozenset({"Roles"})
    afterwards = frozenset({"Roles"})
    creates = Create("create_instance_profile")
    describes = Describe("get_instance_profile", "InstanceProfileName", "InstanceProfile")
    name_property = "InstanceProfileName"
    name_length = 128

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Exchange the role."""
        added, removed = added_removed(old, new, "Roles")
        for role in removed:
            _ignoring_gone(at, "remove_role_from_instance_profile", InstanceProfileName=physical_id, RoleName=role)
        for role in added:
            at.call("add_role_to_instance_profile", InstanceProfileName=physical_id, RoleName=role)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["Arn"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Take the role out, then delete the profile."""
        self.configure(at, physical_id, properties, {})
        at.call("delete_instance_profile", InstanceProfileName=physical_id)


class OidcProvider(IamResource):
    """AWS::IAM::OIDCProvider; its id is its ARN."""

    type_name = "AWS::IAM::OIDCProvider"
    create_only = frozenset({"Url"})
    updatable = frozenset({"ClientIdList", "ThumbprintList", "Tags"})
    creates = Create("create_open_id_connect_provider", "OpenIDConnectProviderArn")
    describes = Describe("get_open_id_connect_provider", "OpenIDConnectProviderArn")
    deletes = Delete("delete_open_id_connect_provider", "OpenIDConnectProviderArn")
    tag_calls = TagCalls(
        identity="OpenIDConnectProviderArn",
        add="tag_open_id_connect_provider",
        remove="untag_open_id_connect_provider",
    )

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Exchange audiences and thumbprints."""
        if changed(old, new, "ThumbprintList"):
            at.call(
                "update_open_id_connect_provider_thumbprint",
                OpenIDConnectProviderArn=physical_id,
                ThumbprintList=new.get("ThumbprintList") or [],
            )
        added, removed = added_removed(old, new, "ClientIdList")
        for verb, clients in (("add", added), ("remove", removed)):
            word = "to" if verb == "add" else "from"
            for client in clients:
                call = f"{verb}_client_id_{word}_open_id_connect_provider"
                at.call(call, OpenIDConnectProviderArn=physical_id, ClientID=client)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN, which the service does not repeat in its description."""
        host = str(found["Url"]).removeprefix("https://")
        return {"Arn": at.arn("iam", f"oidc-provider/{host}", region=False)}


class ServiceLinkedRole(IamResource):
    """AWS::IAM::ServiceLinkedRole; creation fails when the role is already there, as on AWS."""

    type_name = "AWS::IAM::ServiceLinkedRole"
    create_only = frozenset({"AWSServiceName", "CustomSuffix"})
    updatable = frozenset({"Description"})
    creates = Create("create_service_linked_role", "Role.RoleName")
    describes = Describe("get_role", "RoleName", "Role")

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Describe the role differently."""
        if changed(old, new, "Description"):
            at.call("update_role", RoleName=physical_id, Description=new.get("Description") or "")

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the name."""
        return {"RoleName": found["RoleName"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Start the deletion and wait for its end."""
        task = at.call("delete_service_linked_role", RoleName=physical_id)["DeletionTaskId"]

        def ended() -> bool:
            status = at.call("get_service_linked_role_deletion_status", DeletionTaskId=task)
            if status["Status"] == "FAILED":
                raise ResourceFailure(f"{physical_id}: {status.get('Reason', {}).get('Reason', 'deletion failed')}")
            return bool(status["Status"] == "SUCCEEDED")

        wait_for(ended, f"deletion of {physical_id}")


PROVIDERS = (Role(), InlinePolicy(), ManagedPolicy(), InstanceProfile(), OidcProvider(), ServiceLinkedRole())
