"""The lines that Lambda itself writes around an invocation, as text or as JSON.

Sources (read 2026-11): https://docs.aws.amazon.com/lambda/latest/dg/python-logging.html,
https://docs.aws.amazon.com/lambda/latest/dg/telemetry-schema-reference.html
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from localcloud.functions.definition import FunctionDefinition
from localcloud.functions.sandbox import Outcome


@dataclass(frozen=True)
class InvocationTimes:
    """How long an invocation took; `init_seconds` is None in a warm process."""

    duration_seconds: float
    init_seconds: float | None

    @property
    def billed_milliseconds(self) -> int:
        """Whole milliseconds, the initialisation included."""
        return math.ceil((self.duration_seconds + (self.init_seconds or 0.0)) * 1000)


def start_lines(definition: FunctionDefinition, request_id: str) -> list[str]:
    """Return what is written before the handler runs."""
    if definition.log_format != "JSON":
        return [f"START RequestId: {request_id} Version: {definition.version}"]
    return _platform(definition, "platform.start", {"requestId": request_id, "version": definition.version})


def end_lines(definition: FunctionDefinition, request_id: str, times: InvocationTimes, outcome: Outcome) -> list[str]:
    """Return what is written when the invocation has ended."""
    milliseconds = times.duration_seconds * 1000
    if definition.log_format == "JSON":
        metrics: dict[str, Any] = {
            "durationMs": round(milliseconds, 3),
            "billedDurationMs": times.billed_milliseconds,
            "memorySizeMB": definition.memory_mib,
            "maxMemoryUsedMB": outcome.peak_memory_mib,
        }
        if times.init_seconds is not None:
            metrics["initDurationMs"] = round(times.init_seconds * 1000, 3)
        status = {"succeeded": "success", "timed_out": "timeout"}.get(outcome.kind, "error")
        return _platform(definition, "platform.report", {"requestId": request_id, "metrics": metrics, "status": status})
    parts = [
        f"REPORT RequestId: {request_id}",
        f"Duration: {milliseconds:.2f} ms",
        f"Billed Duration: {times.billed_milliseconds} ms",
        f"Memory Size: {definition.memory_mib} MB",
        f"Max Memory Used: {outcome.peak_memory_mib} MB",
    ]
    if times.init_seconds is not None:
        parts.append(f"Init Duration: {times.init_seconds * 1000:.2f} ms")
    if outcome.kind == "timed_out":
        parts.append("Status: timeout")
    return [f"END RequestId: {request_id}", "\t".join(parts)]


def _platform(definition: FunctionDefinition, kind: str, record: dict[str, Any]) -> list[str]:
    if definition.system_log_level == "WARN":  # both are lines of level INFO
        return []
    moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [json.dumps({"time": moment, "type": kind, "record": record})]
