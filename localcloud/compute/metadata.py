"""What the instance metadata service says, path by path, as a pure look-up.

Not here: tokens and HTTP (`metadata_server`).
Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html, read 2026-11.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from localcloud.api import ApiError, Credentials
from localcloud.compute.instance import Instance
from localcloud.compute.instance_credentials import InstanceCredentials
from localcloud.compute.moto_record import MotoRecord

Node = Mapping[str, Any]
"""A folder of the metadata tree: texts, folders, and callables that give either, None or no entry meaning 404."""


@dataclass(frozen=True)
class MetadataSources:
    """Where metadata come from that change while the instance runs."""

    record: MotoRecord
    credentials: InstanceCredentials
    region: str
    account: str
    zone_ids: Callable[[], Mapping[str, str]]
    vpc_cidr: Callable[[str], str]


def lookup(instance: Instance, sources: MetadataSources, path: str) -> str | None:
    """Return the text at `path` (without leading slash), a listing when it is a folder, None when there is nothing."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        return "1.0\nlatest"
    if parts[0] not in ("latest", "1.0", "2021-03-23", "2022-09-24", "2024-10-01"):
        return None
    found: Any = _tree(instance, sources)
    for part in parts[1:]:
        found = found.get(part) if isinstance(found, Mapping) else None
        if callable(found):
            found = found()
        if found is None:
            return None
    return _listing(found) if isinstance(found, Mapping) else str(found)


def _listing(folder: Node) -> str:
    lines = []
    for name, entry in folder.items():
        value = entry() if callable(entry) else entry
        if value is not None:
            lines.append(f"{name}/" if isinstance(value, Mapping) else name)
    return "\n".join(lines)


def _tree(instance: Instance, sources: MetadataSources) -> Node:
    data = instance.specification.user_data
    return {
        "dynamic": {"instance-identity": {"document": lambda: _identity_document(instance, sources)}},
        "meta-data": _meta_data(instance, sources),
        "user-data": data.decode("utf-8", errors="surrogateescape") if data else None,
    }


def _meta_data(instance: Instance, sources: MetadataSources) -> Node:
    specification = instance.specification
    host = f"ip-{instance.private_address.replace('.', '-')}"
    domain = "ec2.internal" if sources.region == "us-east-1" else f"{sources.region}.compute.internal"
    return {
        "ami-id": specification.image_id,
        "ami-launch-index": "0",
        "autoscaling": {"target-lifecycle-state": instance.target_lifecycle_state}
        if instance.target_lifecycle_state
        else None,
        "events": {"recommendations": {"rebalance": _rebalance(instance)}}
        if instance.rebalance_unix_seconds is not None
        else None,
        "hostname": f"{host}.{domain}",
        "iam": _iam(instance, sources) if specification.profile else None,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": specification.purchase.lifecycle,
        "instance-type": specification.instance_type,
        "local-hostname": f"{host}.{domain}",
        "local-ipv4": instance.private_address,
        "mac": instance.mac,
        "network": {"interfaces": {"macs": {instance.mac: lambda: _interface(instance, sources, f"{host}.{domain}")}}},
        "placement": {
            "availability-zone": instance.zone,
            "availability-zone-id": lambda: sources.zone_ids().get(instance.zone),
            "group-name": specification.placement_group,
            "partition-number": None if instance.partition is None else str(instance.partition),
            "region": sources.region,
        },
        "profile": "default-hvm",
        "reservation-id": instance.reservation_id,
        "security-groups": lambda: "\n".join(specification.security_group_ids),
        "services": {"domain": "amazonaws.com", "partition": "aws"},
        "spot": _spot(instance),
        "tags": {"instance": lambda: sources.record.tags(instance.id)}
        if instance.metadata_options["InstanceMetadataTags"] == "enabled"
        else None,
    }


def _interface(instance: Instance, sources: MetadataSources, hostname: str) -> Node:
    specification = instance.specification
    return {
        "device-number": "0",
        "local-hostname": hostname,
        "local-ipv4s": instance.private_address,
        "mac": instance.mac,
        "owner-id": sources.account,
        "security-group-ids": "\n".join(specification.security_group_ids),
        "subnet-id": specification.subnet_id,
        "subnet-ipv4-cidr-block": specification.subnet_cidr,
        "vpc-id": specification.vpc_id,
        "vpc-ipv4-cidr-block": sources.vpc_cidr(specification.vpc_id),
    }


def _spot(instance: Instance) -> Node | None:
    if instance.reclaim_unix_seconds is None:
        return None
    when = stamp(instance.reclaim_unix_seconds)
    return {"instance-action": json.dumps({"action": "terminate", "time": when}), "termination-time": when}


def _rebalance(instance: Instance) -> str:
    assert instance.rebalance_unix_seconds is not None
    return json.dumps({"noticeTime": stamp(instance.rebalance_unix_seconds)})


def _iam(instance: Instance, sources: MetadataSources) -> Node:
    profile = instance.specification.profile
    assert profile is not None

    def credentials() -> str:
        try:
            return _credentials_document(sources.credentials.of(instance))
        except ApiError as error:
            return json.dumps(
                {
                    "Code": "AssumeRoleUnauthorizedAccess",
                    "Message": f"EC2 cannot assume the role {profile.role_name}. {error.message}",
                    "LastUpdated": stamp(instance.launched_unix_seconds),
                }
            )

    return {
        "info": json.dumps(
            {
                "Code": "Success",
                "LastUpdated": stamp(instance.launched_unix_seconds),
                "InstanceProfileArn": profile.arn,
                "InstanceProfileId": profile.profile_id,
            }
        ),
        "security-credentials": {profile.role_name: credentials},
    }


def _credentials_document(credentials: Credentials) -> str:
    return json.dumps(
        {
            "Code": "Success",
            "LastUpdated": stamp(datetime.now(timezone.utc).timestamp()),
            "Type": "AWS-HMAC",
            "AccessKeyId": credentials.access_key_id,
            "SecretAccessKey": credentials.secret_access_key,
            "Token": credentials.session_token,
            "Expiration": stamp(credentials.expires_unix_seconds),
        }
    )


def _identity_document(instance: Instance, sources: MetadataSources) -> str:
    return json.dumps(
        {
            "accountId": sources.account,
            "architecture": "x86_64",
            "availabilityZone": instance.zone,
            "billingProducts": None,
            "imageId": instance.specification.image_id,
            "instanceId": instance.id,
            "instanceType": instance.specification.instance_type,
            "kernelId": None,
            "pendingTime": stamp(instance.launched_unix_seconds),
            "privateIp": instance.private_address,
            "region": sources.region,
            "version": "2017-09-30",
        },
        indent=2,
    )


def stamp(unix_seconds: float) -> str:
    """Return a time as AWS writes it, to the second, in UTC."""
    return datetime.fromtimestamp(unix_seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
