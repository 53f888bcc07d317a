"""Client for version 2 of the instance metadata service: this instance's identity, notices and lifecycle state.

boto3 fetches role credentials from the same endpoint.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html (2026-11).
"""

from __future__ import annotations

import calendar
import json
import re
import threading
import time
from dataclasses import dataclass

from bootstrap.errors import MetadataError, NoMetadataService
from bootstrap.system import HttpAnswer, System

DEFAULT_ENDPOINT = "http://169.254.169.254"
IPV6_ENDPOINT = "http://[fd00:ec2::254]"
REQUEST_TIMEOUT_SECONDS = 1.0
ATTEMPTS = 3
TOKEN_LIFE_SECONDS = 21600
TERMINATED = "Terminated"
"""Target lifecycle state of an instance that its group is terminating. Source (2026-11):
https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html"""
_TOKEN = re.compile(r"[!-~]{1,4096}")
_PRINTABLE = re.compile(r"[!-~]{1,256}")
_GROUP_NAME_TAG = "aws:autoscaling:groupName"


@dataclass(frozen=True)
class InstanceIdentity:
    """This instance's identity. `auto_scaling_group` is None outside a group or if the metadata has no tags."""

    instance_id: str
    instance_type: str
    availability_zone: str
    private_address: str
    market: str
    auto_scaling_group: str | None


@dataclass(frozen=True)
class InterruptionNotice:
    """A notice that AWS will terminate, stop or hibernate (`action`) this instance at `reclaim_unix_seconds`."""

    action: str
    reclaim_unix_seconds: float


class InstanceMetadata:
    """A thread-safe client for the instance metadata service.

    A request takes at most `ATTEMPTS` times `REQUEST_TIMEOUT_SECONDS`, plus the pauses between attempts, even if the
    response arrives byte by byte. A truncated response is treated as no response.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        endpoint = system.environment().get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or DEFAULT_ENDPOINT
        self._endpoint = endpoint.rstrip("/")
        self._token: str | None = None
        self._token_expires = 0.0
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """Return the URL of the service."""
        return self._endpoint

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the service is at the link-local address and therefore describes this machine's hardware.

        Another address belongs to an embedded cloud, whose nodes share the disks of a developer's computer.
        """
        return self._endpoint in (DEFAULT_ENDPOINT, IPV6_ENDPOINT)

    def identity(self) -> InstanceIdentity:
        """Return this instance's identity.

        Raises:
            NoMetadataService: The service did not respond.
            MetadataError: A value is missing or was refused.
        """
        return InstanceIdentity(
            instance_id=self._required("instance-id"),
            instance_type=self._required("instance-type"),
            availability_zone=self._required("placement/availability-zone"),
            private_address=self._required("local-ipv4"),
            market="spot" if self.get("instance-life-cycle") == "spot" else "on-demand",
            auto_scaling_group=self.get(f"tags/instance/{_GROUP_NAME_TAG}"),
        )

    def interruption_notice(self) -> InterruptionNotice | None:
        """Return the spot interruption notice, or None."""
        text = self.get("spot/instance-action")
        if text is None:
            return None
        try:
            notice = json.loads(text)
            return InterruptionNotice(str(notice["action"]), parse_time(notice["time"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise MetadataError(f"spot/instance-action: {text[:200]!r}: invalid ({error})") from error

    def launched_unix_seconds(self) -> float | None:
        """Return the time of the launch, or None if the identity document does not contain it.

        Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html

        Raises:
            NoMetadataService: The service did not respond.
            MetadataError: The status is neither 200 nor 404.
        """
        text = self._read("dynamic/instance-identity/document")
        try:
            return None if text is None else parse_time(json.loads(text)["pendingTime"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def rebalance_recommendation(self) -> str | None:
        """Return the time of the latest rebalance recommendation in AWS's format, or None."""
        text = self.get("events/recommendations/rebalance")
        if text is None:
            return None
        try:
            return str(json.loads(text)["noticeTime"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise MetadataError(f"events/recommendations/rebalance: {text[:200]!r}: invalid ({error})") from error

    def target_lifecycle_state(self) -> str | None:
        """Return the lifecycle state that the group is moving this instance to, or None outside a group."""
        return self.get("autoscaling/target-lifecycle-state")

    def get(self, path: str) -> str | None:
        """Return `latest/meta-data/<path>`, or None for status 404.

        Raises:
            NoMetadataService: The service did not respond.
            MetadataError: The status is neither 200 nor 404.
        """
        return self._read(f"meta-data/{path}")

    def _read(self, path: str) -> str | None:
        with self._lock:
            answer = self._with_token(path)
            if answer.status == 401:  # the token has expired early, for example during hibernation
                self._token = None
                answer = self._with_token(path)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise MetadataError(f"{self._endpoint}: {path}: status {answer.status}: {answer.body[:200]}")
        return answer.body.strip()

    def _required(self, path: str) -> str:
        value = self.get(path)
        if not value:
            raise MetadataError(f"{self._endpoint}: {path}: missing from instance metadata")
        if _PRINTABLE.fullmatch(value) is None:  # the value becomes part of object names
            raise MetadataError(
                f"{self._endpoint}: {path}: {value[:80]!r}: must be 1 to 256 printable ASCII characters"
            )
        return value

    def _with_token(self, path: str) -> HttpAnswer:
        now = self._system.monotonic_seconds()
        if self._token is None or now >= self._token_expires:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFE_SECONDS)}
            answer = self._bounded("PUT", "latest/api/token", headers)
            if answer.status != 200:
                raise MetadataError(f"{self._endpoint}: no token: status {answer.status}: {answer.body[:200]}")
            token = answer.body.strip()
            if _TOKEN.fullmatch(token) is None:  # http.client raises ValueError for other header values
                raise MetadataError(f"{self._endpoint}: latest/api/token: {token[:80]!r}: not a token")
            self._token = token
            self._token_expires = now + TOKEN_LIFE_SECONDS / 2
        return self._bounded("GET", f"latest/{path}", {"X-aws-ec2-metadata-token": self._token})

    def _bounded(self, method: str, path: str, headers: dict[str, str]) -> HttpAnswer:
        url = f"{self._endpoint}/{path}"
        problem: OSError | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                self._system.sleep(0.2 * attempt)
            try:
                answer = self._system.http(method, url, headers=headers, timeout_seconds=REQUEST_TIMEOUT_SECONDS)
            except OSError as error:  # no response, or a truncated, slow or too large one
                problem = error
                continue
            if answer.status < 500:
                return answer
            problem = OSError(f"status {answer.status}")
        raise NoMetadataService(f"{url}: no response after {ATTEMPTS} attempts ({problem})") from problem


def parse_time(text: str) -> float:
    """Return the Unix time for a UTC timestamp from instance metadata (2026-11-28T01:02:03Z)."""
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
