"""Resolves instance metadata paths with pure functions, and provides the credentials that the service returns.

`metadata_server` handles tokens and HTTP.
Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html, read 2026-11.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcloud.api import ApiError, CredentialIssuer, Credentials
from localcloud.compute.describe import iso_time
from localcloud.compute.launch.moto_record import MotoRecord
from localcloud.compute.machines.instance import Instance

SESSION_SECONDS = 6 * 3600
"""Duration of an instance's role session."""
RENEWAL_SECONDS = 3600
"""Time before expiry at which credentials are renewed. SDKs start to refresh credentials 15 minutes before expiry."""

Node = Mapping[str, Any]
"""A metadata directory. Values are strings, directories or callables that return either, and None means 404."""


class InstanceCredentials:
    """Role credentials that the metadata service serves. Each instance has one session, renewed before it expires."""

    def __init__(self, issuer: CredentialIssuer, clock: Callable[[], float] = time.time) -> None:
        self._issuer = issuer
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, Credentials] = {}

    def of(self, instance: Instance) -> Credentials:
        """Return credentials for the instance's role that are valid for at least `RENEWAL_SECONDS`.

        Raises:
            ApiError: The role does not exist or does not trust EC2.
        """
        profile = instance.specification.profile
        assert profile is not None, "called only for instances with a profile"
        with self._lock:
            kept = self._kept.get(instance.id)
            if kept is None or kept.expires_unix_seconds - self._clock() < RENEWAL_SECONDS:
                kept = self._issuer.issue(
                    profile.role_arn, instance.id, trusted_service="ec2.amazonaws.com", duration_seconds=SESSION_SECONDS
                )
                self._kept[instance.id] = kept
            return kept

    def forget(self, instance_id: str) -> None:
        """Drop a terminated instance's session."""
        with self._lock:
            self._kept.pop(instance_id, None)


@dataclass(frozen=True)
class MetadataSources:
    """Sources of the metadata that changes while the instance runs."""

    record: MotoRecord
    credentials: InstanceCredentials
    region: str
    account: str
    zone_ids: Callable[[], Mapping[str, str]]
    vpc_cidr: Callable[[str], str]


def lookup(instance: Instance, sources: MetadataSources, path: str) -> str | None:
    """Return the text or directory listing at `path` (no leading slash), or None if the path does not exist."""
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
        "ami-manifest-path": "(unknown)",
        "autoscaling": {"target-lifecycle-state": instance.target_lifecycle_state}
        if instance.target_lifecycle_state
        else None,
        "block-device-mapping": lambda: _block_devices(sources.record.devices(instance.id)),
        "events": {
            "maintenance": {"history": "[]", "scheduled": "[]"},
            "recommendations": {"rebalance": _rebalance(instance)}
            if instance.rebalance_unix_seconds is not None
            else None,
        },
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
        "security-groups": lambda: "\n".join(sources.record.security_group_names(instance.id)),
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
        "interface-id": sources.record.interface_id(instance.id),
        "local-hostname": hostname,
        "local-ipv4s": instance.private_address,
        "mac": instance.mac,
        "network-card-index": "0",
        "owner-id": sources.account,
        "security-group-ids": "\n".join(specification.security_group_ids),
        "security-groups": "\n".join(sources.record.security_group_names(instance.id)),
        "subnet-id": specification.subnet_id,
        "subnet-ipv4-cidr-block": specification.subnet_cidr,
        "vpc-id": specification.vpc_id,
        "vpc-ipv4-cidr-block": sources.vpc_cidr(specification.vpc_id),
        "vpc-ipv4-cidr-blocks": sources.vpc_cidr(specification.vpc_id),
    }


def _block_devices(names: Sequence[str]) -> Node:
    """Return the names of the block devices: the root device, then the other volumes, with "/dev/" removed."""
    root, *others = names
    volumes = {f"ebs{number}": name.removeprefix("/dev/") for number, name in enumerate(others, 1)}
    return {"ami": root, **volumes, "root": root}


def _spot(instance: Instance) -> Node | None:
    if instance.reclaim_unix_seconds is None:
        return None
    when = iso_time(instance.reclaim_unix_seconds)
    return {"instance-action": json.dumps({"action": "terminate", "time": when}), "termination-time": when}


def _rebalance(instance: Instance) -> str:
    assert instance.rebalance_unix_seconds is not None
    return json.dumps({"noticeTime": iso_time(instance.rebalance_unix_seconds)})


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
                    "LastUpdated": iso_time(instance.launched_unix_seconds),
                }
            )

    return {
        "info": json.dumps(
            {
                "Code": "Success",
                "LastUpdated": iso_time(instance.launched_unix_seconds),
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
            "LastUpdated": iso_time(time.time()),
            "Type": "AWS-HMAC",
            "AccessKeyId": credentials.access_key_id,
            "SecretAccessKey": credentials.secret_access_key,
            "Token": credentials.session_token,
            "Expiration": iso_time(credentials.expires_unix_seconds),
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
            "pendingTime": iso_time(instance.launched_unix_seconds),
            "privateIp": instance.private_address,
            "region": sources.region,
            "version": "2017-09-30",
        },
        indent=2,
    )
