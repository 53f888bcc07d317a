"""The events that Parameter Store and S3 send, made from the calls that moto has answered.

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

from botocore.exceptions import ClientError
from moto.s3.exceptions import MissingBucket
from moto.s3.models import s3_backends

from localcloud.api import Call, Clients, Observer


@dataclass(frozen=True)
class ServiceEvent:
    """An event before it has an id and a time."""

    source: str
    detail_type: str
    detail: Mapping[str, Any]
    resources: tuple[str, ...] = ()


Submit = Callable[[str, Callable[[], list[ServiceEvent]]], None]
"""Takes a source and a function that makes its events later, in a worker."""


class ParameterEvents:
    """Parameter Store Change, for parameters that are put and deleted."""

    def __init__(self, clients: Clients, submit: Submit) -> None:
        self._clients = clients
        self._submit = submit
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str | None]] = {}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers of SSM's calls."""
        return {
            ("ssm", "PutParameter"): self._put,
            ("ssm", "DeleteParameter"): self._delete,
            ("ssm", "DeleteParameters"): self._delete_several,
        }

    def _put(self, call: Call, answer: Mapping[str, Any]) -> None:
        parameters = call.parameters
        name = str(parameters["Name"])
        with self._lock:
            known_type, known_description = self._known.get(name, ("String", None))
            kind = str(parameters.get("Type") or known_type)
            description = parameters.get("Description", known_description)
            self._known[name] = (kind, description)
        operation = "Create" if answer.get("Version", 1) == 1 else "Update"
        self._send(name, kind, description, operation)

    def _delete(self, call: Call, answer: Mapping[str, Any]) -> None:
        self._forget(str(call.parameters["Name"]))

    def _delete_several(self, call: Call, answer: Mapping[str, Any]) -> None:
        for name in answer.get("DeletedParameters", []):
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
    """Object Created and Object Deleted, for buckets that send their events to EventBridge."""

    def __init__(self, clients: Clients, submit: Submit) -> None:
        self._clients = clients
        self._submit = submit
        self._sequence = itertools.count(int(time.time() * 1e6))

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers of S3's calls."""
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
            if not self._sends_events(call):
                return []
            described: dict[str, Any] = {"key": key, "sequencer": sequencer}
            try:
                head = self._clients.direct("s3").head_object(Bucket=call.parameters["Bucket"], Key=key)
                described |= {"size": head["ContentLength"], "etag": head["ETag"].strip('"')}
            except ClientError:  # deleted since: the event is still due, as on AWS
                described["etag"] = str(answer.get("ETag", "")).strip('"')
            if answer.get("VersionId"):
                described["version-id"] = answer["VersionId"]
            return [self._event(call, "Object Created", described, {"reason": reason})]

        self._submit("aws.s3", make)

    def _deleted(self, call: Call, answer: Mapping[str, Any]) -> None:
        self._send_deleted(call, str(call.parameters["Key"]), answer, "VersionId")

    def _deleted_several(self, call: Call, answer: Mapping[str, Any]) -> None:
        for entry in answer.get("Deleted", []):
            self._send_deleted(call, str(entry["Key"]), entry, "DeleteMarkerVersionId")

    def _send_deleted(self, call: Call, key: str, entry: Mapping[str, Any], version_key: str) -> None:
        described: dict[str, Any] = {"key": key, "sequencer": self._sequencer()}
        version = entry.get(version_key) or entry.get("VersionId")
        if version:
            described["version-id"] = version
        kind = "Delete Marker Created" if entry.get("DeleteMarker") else "Permanently Deleted"

        def make() -> list[ServiceEvent]:
            if not self._sends_events(call):
                return []
            more = {"reason": "DeleteObject", "deletion-type": kind}
            return [self._event(call, "Object Deleted", described, more)]

        self._submit("aws.s3", make)

    def _sends_events(self, call: Call) -> bool:
        # Asked of moto's record: its GetBucketNotificationConfiguration leaves EventBridgeConfiguration out.
        try:
            bucket = s3_backends[self._clients.account]["aws"].get_bucket(str(call.parameters["Bucket"]))
        except MissingBucket:  # deleted since
            return False
        configuration = bucket.notification_configuration
        return configuration is not None and configuration.event_bridge is not None

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
