"""Instance metadata, version 2: who this machine is, and what AWS is about to do with it.

Role credentials are not here: boto3 fetches them itself, from the same endpoint.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html (2026-11).
"""

from __future__ import annotations

import calendar
import json
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
_GROUP_NAME_TAG = "aws:autoscaling:groupName"


@dataclass(frozen=True)
class InstanceIdentity:
    """What this machine is; `auto_scaling_group` is None outside a group or without tags in metadata."""

    instance_id: str
    instance_type: str
    availability_zone: str
    private_address: str
    market: str
    auto_scaling_group: str | None


@dataclass(frozen=True)
class InterruptionNotice:
    """AWS takes the machine back at `reclaim_unix_seconds`; `action` is terminate, stop or hibernate."""

    action: str
    reclaim_unix_seconds: float


class InstanceMetadata:
    """A client of the instance metadata service; safe to share between threads.

    Every request is bounded: at most `ATTEMPTS` times `REQUEST_TIMEOUT_SECONDS`, plus the pauses between.
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
        """Return the address that is asked."""
        return self._endpoint

    @property
    def is_of_this_machine(self) -> bool:
        """Tell whether the metadata come from the link-local address, so are of the hardware that this runs on.

        Another address is an emulated cloud, whose nodes share the disks of somebody's computer.
        """
        return self._endpoint in (DEFAULT_ENDPOINT, IPV6_ENDPOINT)

    def identity(self) -> InstanceIdentity:
        """Ask who this machine is.

        Raises:
            NoMetadataService: Nothing answers.
            MetadataError: An answer is missing or refused.
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
        """Return the spot interruption notice, or None as long as there is none."""
        text = self.get("spot/instance-action")
        if text is None:
            return None
        try:
            notice = json.loads(text)
            return InterruptionNotice(str(notice["action"]), parse_time(notice["time"]))
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataError(f"spot/instance-action: {text[:200]!r}: cannot be read ({error})") from error

    def rebalance_recommendation(self) -> str | None:
        """Return the time (as AWS writes it) of the latest rebalance recommendation, or None."""
        text = self.get("events/recommendations/rebalance")
        if text is None:
            return None
        try:
            return str(json.loads(text)["noticeTime"])
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataError(
                f"events/recommendations/rebalance: {text[:200]!r}: cannot be read ({error})"
            ) from error

    def target_lifecycle_state(self) -> str | None:
        """Return the state that the Auto Scaling group moves this machine to, or None outside a group."""
        return self.get("autoscaling/target-lifecycle-state")

    def get(self, path: str) -> str | None:
        """Return `latest/meta-data/<path>`, or None when there is none (404).

        Raises:
            NoMetadataService: Nothing answers.
            MetadataError: Another status than 200 and 404.
        """
        with self._lock:
            answer = self._with_token(path)
            if answer.status == 401:  # the token ran out earlier than promised, as after a resume from hibernation
                self._token = None
                answer = self._with_token(path)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise MetadataError(f"{self._endpoint}: {path}: answered {answer.status}: {answer.body[:200]}")
        return answer.body.strip()

    def _required(self, path: str) -> str:
        value = self.get(path)
        if not value:
            raise MetadataError(f"{self._endpoint}: {path}: is missing; instance metadata must have it")
        return value

    def _with_token(self, path: str) -> HttpAnswer:
        now = self._system.monotonic_seconds()
        if self._token is None or now >= self._token_expires:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFE_SECONDS)}
            answer = self._bounded("PUT", "latest/api/token", headers)
            if answer.status != 200:
                raise MetadataError(f"{self._endpoint}: no token: answered {answer.status}: {answer.body[:200]}")
            self._token = answer.body.strip()
            self._token_expires = now + TOKEN_LIFE_SECONDS / 2
        return self._bounded("GET", f"latest/meta-data/{path}", {"X-aws-ec2-metadata-token": self._token})

    def _bounded(self, method: str, path: str, headers: dict[str, str]) -> HttpAnswer:
        url = f"{self._endpoint}/{path}"
        problem: OSError | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                self._system.sleep(0.2 * attempt)
            try:
                answer = self._system.http(method, url, headers=headers, timeout_seconds=REQUEST_TIMEOUT_SECONDS)
            except OSError as error:
                problem = error
                continue
            if answer.status < 500:
                return answer
            problem = OSError(f"answered {answer.status}")
        raise NoMetadataService(f"{url}: no instance metadata after {ATTEMPTS} attempts ({problem})") from problem


def parse_time(text: str) -> float:
    """Return the Unix time of a UTC timestamp as instance metadata writes it (2026-11-28T01:02:03Z)."""
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
