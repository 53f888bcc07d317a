"""Creates Parameter Store and S3 events from the calls that moto handles.

Observers may receive a call without its response, so events are created from moto's records.

Sources (read 2026-11): https://docs.aws.amazon.com/systems-manager/latest/userguide/monitoring-systems-manager-events.html,
https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moto.s3.exceptions import MissingBucket
from moto.s3.models import FakeKey, s3_backends
from moto.ssm.models import ssm_backends

from localcloud.api import Call, Clients, Observer


@dataclass(frozen=True)
class ServiceEvent:
    """An event without an ID or a time."""

    source: str
    detail_type: str
    detail: Mapping[str, Any]
    resources: tuple[str, ...] = ()


Submit = Callable[[str, Callable[[], list[ServiceEvent]]], None]
"""Accepts an event source and a function that a worker calls to create the source's events."""


class ParameterEvents:
    """Creates Parameter Store Change events when parameters are created, updated or deleted."""

    def __init__(self, clients: Clients, submit: Submit) -> None:
        self._clients = clients
        self._submit = submit
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str | None]] = {}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers for SSM calls."""
        return {
            ("ssm", "PutParameter"): self._put,
            ("ssm", "DeleteParameter"): self._delete,
            ("ssm", "DeleteParameters"): self._delete_several,
        }

    def _put(self, call: Call, answer: Mapping[str, Any]) -> None:
        name = str(call.parameters["Name"])
        record = ssm_backends[self._clients.account][self._clients.region].get_parameter(name)
        if record is None:  # another call has deleted it
            return
        kind, description = str(record.parameter_type), record.description or None
        with self._lock:
            known = self._known.get(name)
            self._known[name] = (kind, description or (known[1] if known else None))
            description = self._known[name][1]
        self._send(name, kind, description, "Create" if record.version == 1 else "Update")

    def _delete(self, call: Call, answer: Mapping[str, Any]) -> None:
        self._forget(str(call.parameters["Name"]))

    def _delete_several(self, call: Call, answer: Mapping[str, Any]) -> None:
        with self._lock:
            known = [name for name in call.parameters["Names"] if name in self._known]
        for name in known:  # the other parameters did not exist
            self._forget(str(name))

    def _forget(self, name: str) -> None:
        with self._lock:
            kind, description = self._known.pop(name, ("String", None))
        self._send(name, kind, description, "Delete")

    def _send(self, name: str, kind: str, description: str | None, operation: str) -> None:
        detail = {"name": name, "type": kind, "operation": operation}
        if description is not None:
            detail["description"] = description
        arn = f"arn:aws:ssm:{self._clients.region}:{self._clients.account}:parameter/{name.lstrip('/')}"
        event = ServiceEvent("aws.ssm", "Parameter Store Change", detail, (arn,))
        self._submit("aws.ssm", lambda: [event])


class ObjectEvents:
    """Creates Object Created and Object Deleted events for buckets that send events to EventBridge."""

    def __init__(self, clients: Clients, submit: Submit) -> None:
        self._clients = clients
        self._submit = submit
        self._sequence = itertools.count(int(time.time() * 1e6))

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers for S3 calls."""
        return {
            ("s3", "PutObject"): lambda call, answer: self._created(call, answer, "PutObject"),
            ("s3", "CopyObject"): lambda call, answer: self._created(call, answer, "CopyObject"),
            ("s3", "CompleteMultipartUpload"): lambda call, answer: self._created(
                call, answer, "CompleteMultipartUpload"
            ),
            ("s3", "DeleteObject"): self._deleted,
            ("s3", "DeleteObjects"): self._deleted_several,
        }

    def _created(self, call: Call, answer: Mapping[str, Any], reason: str) -> None:
        key = str(call.parameters["Key"])
        sequencer = self._sequencer()

        def make() -> list[ServiceEvent]:
            bucket = self._sending_bucket(call)
            if bucket is None:
                return []
            described: dict[str, Any] = {"key": key, "sequencer": sequencer}
            stored = bucket.keys.get(key)
            if isinstance(stored, FakeKey):  # otherwise, the object is already deleted and its size is unknown
                described |= {"size": stored.size, "etag": stored.etag.strip('"')}
                if bucket.is_versioned:
                    described["version-id"] = stored.version_id
            return [self._event(call, "Object Created", described, {"reason": reason})]

        self._submit("aws.s3", make)

    def _deleted(self, call: Call, answer: Mapping[str, Any]) -> None:
        self._send_deleted(call, str(call.parameters["Key"]), call.parameters.get("VersionId"))

    def _deleted_several(self, call: Call, answer: Mapping[str, Any]) -> None:
        for entry in call.parameters.get("Delete", {}).get("Objects", []):
            self._send_deleted(call, str(entry["Key"]), entry.get("VersionId"))

    def _send_deleted(self, call: Call, key: str, version: str | None) -> None:
        described: dict[str, Any] = {"key": key, "sequencer": self._sequencer()}
        if version is not None:
            described["version-id"] = version

        def make() -> list[ServiceEvent]:
            bucket = self._sending_bucket(call)
            if bucket is None:
                return []
            leaves_marker = bucket.is_versioned and version is None
            kind = "Delete Marker Created" if leaves_marker else "Permanently Deleted"
            more = {"reason": "DeleteObject", "deletion-type": kind}
            return [self._event(call, "Object Deleted", described, more)]

        self._submit("aws.s3", make)

    def _sending_bucket(self, call: Call) -> Any:
        # Read moto's record, since its GetBucketNotificationConfiguration omits EventBridgeConfiguration.
        try:
            bucket = s3_backends[self._clients.account]["aws"].get_bucket(str(call.parameters["Bucket"]))
        except MissingBucket:  # the bucket has been deleted
            return None
        configuration = bucket.notification_configuration
        return bucket if configuration is not None and configuration.event_bridge is not None else None

    def _event(
        self, call: Call, detail_type: str, described: Mapping[str, Any], more: Mapping[str, Any]
    ) -> ServiceEvent:
        bucket = str(call.parameters["Bucket"])
        detail = {
            "version": "0",
            "bucket": {"name": bucket},
            "object": described,
            "request-id": uuid.uuid4().hex[:16].upper(),
            "requester": call.account,
            "source-ip-address": call.source_address,
            **more,
        }
        return ServiceEvent("aws.s3", detail_type, detail, (f"arn:aws:s3:::{bucket}",))

    def _sequencer(self) -> str:
        return f"{next(self._sequence):018X}"
