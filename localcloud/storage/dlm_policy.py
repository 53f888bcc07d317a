"""Pure functions that validate lifecycle policies for EBS snapshots.

Source: docs.aws.amazon.com/dlm/latest/APIReference/API_PolicyDetails.html, API_CreateRule.html and API_RetainRule.html
(2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from localcloud.events.schedules import InvalidSchedule, parse_schedule

INTERVAL_HOURS = (1, 2, 3, 4, 6, 8, 12, 24)
_SECONDS = {"DAYS": 86400, "WEEKS": 7 * 86400, "MONTHS": 30 * 86400, "YEARS": 365 * 86400}
_SCHEDULE = frozenset({"Name", "CopyTags", "TagsToAdd", "CreateRule", "RetainRule", "FastRestoreRule", "VariableTags"})


def problems(details: Mapping[str, Any]) -> list[str]:
    """Return all problems in a policy's details."""
    found = []
    if details.get("PolicyType", "EBS_SNAPSHOT_MANAGEMENT") != "EBS_SNAPSHOT_MANAGEMENT":
        found.append(f"PolicyType {details['PolicyType']} is not emulated")
    if details.get("ResourceTypes") != ["VOLUME"]:
        found.append("ResourceTypes must be [VOLUME]; other types are not emulated")
    if not details.get("TargetTags"):
        found.append("TargetTags: at least one tag is required")
    schedules = details.get("Schedules") or []
    if not 1 <= len(schedules) <= 4:
        found.append(f"Schedules: found {len(schedules)}, expected 1 to 4")
    for schedule in schedules:
        found += [f"schedule {schedule.get('Name')}: {problem}" for problem in _schedule_problems(schedule)]
    return found


def _schedule_problems(schedule: Mapping[str, Any]) -> list[str]:
    found = [f"{name} is not emulated" for name in sorted(set(schedule) - _SCHEDULE) if schedule[name]]
    if schedule.get("VariableTags"):
        found.append("VariableTags is not emulated")
    found += _create_problems(schedule.get("CreateRule") or {})
    retain = schedule.get("RetainRule") or {}
    if bool(retain.get("Count")) == bool(retain.get("Interval")):
        found.append("RetainRule: either Count or Interval is required")
    elif retain.get("Count") and not 1 <= retain["Count"] <= 1000:
        found.append(f"RetainRule: Count {retain['Count']} must be from 1 to 1000")
    elif retain.get("Interval") and retain.get("IntervalUnit") not in _SECONDS:
        found.append(f"RetainRule: IntervalUnit {retain.get('IntervalUnit')} is not one of {', '.join(_SECONDS)}")
    return found


def _create_problems(rule: Mapping[str, Any]) -> list[str]:
    if rule.get("CronExpression"):
        try:
            parse_schedule(rule["CronExpression"])
        except InvalidSchedule as error:
            return [f"CreateRule: {error}"]
        return []
    found = []
    if rule.get("Interval") not in INTERVAL_HOURS or rule.get("IntervalUnit") != "HOURS":
        allowed = ", ".join(map(str, INTERVAL_HOURS))
        found.append(
            f"CreateRule: Interval {rule.get('Interval')} {rule.get('IntervalUnit')} must be one of {allowed} HOURS"
        )
    times = rule.get("Times") or ["09:00"]
    if len(times) != 1 or not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", times[0]):
        found.append(f"CreateRule: Times {times} must be a single time in the format hh:mm")
    return found


def retention_seconds(rule: Mapping[str, Any]) -> int:
    """Return an age-based retention rule's retention period in seconds."""
    return int(rule["Interval"]) * _SECONDS[rule["IntervalUnit"]]
