"""Reads from moto the keys, roles, launch templates and tags that IAM evaluation requires."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from moto.backends import get_backend

from localcloud.iam.identity import ACCOUNT, iam_backend
from localcloud.iam.policy import Access, Document


def document(policy: Any) -> Document:
    """Return a policy document, which moto stores as a string, bytes, a percent-encoded string or a mapping."""
    if isinstance(policy, bytes):
        policy = policy.decode()
    if isinstance(policy, str):
        policy = json.loads(unquote(policy) if policy.startswith("%7B") else policy)
    loaded: Document = policy
    return loaded


def managed_document(policy: Any) -> Document:
    """Return the document of a managed policy's default version."""
    version = next(v for v in policy.versions if v.version_id == policy.default_version_id)
    return document(version.document)


def key_arn(region: str, key: str) -> str:
    """Return a KMS key's ARN by ID, ARN, alias or alias ARN. For an unknown key, return the ARN it would have."""
    keys = get_backend("kms")[ACCOUNT][region]
    name = key.rpartition(":")[2] if key.startswith("arn:") else key
    if name.startswith("alias/"):
        found = keys.get_key_id_from_alias(name)
        name = str(found) if found else name
    name = name.removeprefix("key/")
    if name in keys.keys:
        return str(keys.keys[name].arn)
    return key if key.startswith("arn:") else f"arn:aws:kms:{region}:{ACCOUNT}:{name if '/' in name else 'key/' + name}"


def bucket(name: str) -> Any:
    """Return moto's bucket with this name, or None."""
    return get_backend("s3")[ACCOUNT]["aws"].buckets.get(name)


def bucket_key(name: str) -> str | None:
    """Return the customer-managed key in a bucket's encryption configuration, or None."""
    found = bucket(name)
    rules = ((found.encryption if found is not None else None) or {}).get("Rule") or []
    for rule in rules if isinstance(rules, list) else [rules]:
        default = rule.get("ApplyServerSideEncryptionByDefault") or {}
        key = default.get("KMSMasterKeyID")
        if default.get("SSEAlgorithm", "").startswith("aws:kms") and key:
            return str(key)
    return None


def object_key(bucket_name: str, name: str, version: str | None) -> str | None:
    """Return a stored object's customer-managed key, or None."""
    found = bucket(bucket_name)
    if found is None:
        return None
    stored = found.keys.get(name)
    if version is not None:
        stored = next((one for one in found.keys.getlist(name, []) if str(one.version_id) == version), None)
    if stored is None or getattr(stored, "encryption", None) == "AES256":
        return None
    return str(stored.kms_key_id) if getattr(stored, "kms_key_id", None) else bucket_key(bucket_name)


def profile_role(profile: Mapping[str, Any]) -> str | None:
    """Return the ARN of the role in an instance profile, given as {"Name": ...} or {"Arn": ...}."""
    for stored in iam_backend().instance_profiles.values():
        if profile.get("Arn") == stored.arn or profile.get("Name") == stored.name:
            return str(stored.roles[0].arn) if stored.roles else None
    return None


def role_boundary(name: str) -> str | None:
    """Return the ARN of a role's permissions boundary, or None."""
    role = next((one for one in iam_backend().roles.values() if one.name == name), None)
    boundary = getattr(role, "permissions_boundary_arn", None)
    return str(boundary) if boundary else None


def launch_template(region: str, specification: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Return a launch template's ID and the data of the specified version."""
    templates = get_backend("ec2")[ACCOUNT][region].launch_templates
    for one in templates.values():
        if specification.get("LaunchTemplateId") != one.id and specification.get("LaunchTemplateName") != one.name:
            continue
        version = str(specification.get("Version") or "$Default")
        number = {"$Latest": one.latest_version_number, "$Default": one.default_version_number}.get(version, version)
        for stored in one.versions:
            if str(stored.number) == str(number):
                return str(one.id), stored.data
        return str(one.id), {}
    return None, {}


def ec2_tags(region: str, resource: str) -> Mapping[str, str]:
    """Return an EC2 resource's tags, by ARN."""
    return dict(get_backend("ec2")[ACCOUNT][region].tags.get(resource.rpartition("/")[2], {}))


def resource_policies(access: Access) -> list[Document]:
    """Return the policies attached to the resource that the call accesses."""
    kind = access.action.partition(":")[0]
    if kind == "s3" and access.resource.startswith("arn:aws:s3:::"):
        found = bucket(access.resource.removeprefix("arn:aws:s3:::").split("/", 1)[0])
        return [document(found.policy)] if found is not None and found.policy else []
    if kind == "kms" and ":key/" in access.resource:
        key = get_backend("kms")[ACCOUNT][access.resource.split(":")[3]].keys.get(access.resource.rpartition("/")[2])
        return [document(key.policy)] if key is not None and key.policy else []
    if kind == "lambda" and ":function:" in access.resource:
        region, name = access.resource.split(":")[3], access.resource.split(":")[6]
        functions = get_backend("lambda")[ACCOUNT][region].list_functions()
        return [{"Statement": one.policy.statements} for one in functions if one.function_name == name and one.policy]
    return []
