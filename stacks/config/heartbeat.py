"""The `node.supervise` section: heartbeats, their timeout, and polling."""

from __future__ import annotations

from bootstrap.documents.supervisor_limits import (
    MIN_HEARTBEAT_SECONDS,
    MIN_HEARTBEAT_TIMEOUT_SECONDS,
    MIN_POLL_SECONDS,
)
from stacks.config.setting import Section, setting


class SuperviseConfig(Section):
    """The supervisor's intervals and timeouts."""

    poll_seconds: float = setting(
        "Seconds between reads from the metadata service.",
        edit="replaces nodes",
        default=2.0,
        ge=MIN_POLL_SECONDS,
    )
    heartbeat_seconds: float = setting(
        "Seconds between heartbeats.",
        edit="replaces nodes",
        default=2.0,
        ge=MIN_HEARTBEAT_SECONDS,
    )
    heartbeat_timeout_seconds: float = setting(
        "Seconds without a heartbeat in S3 after which a peer is considered lost. If its pings also fail, three tenths "
        "of this time is enough.",
        edit="replaces nodes",
        default=10.0,
        ge=MIN_HEARTBEAT_TIMEOUT_SECONDS,
    )
