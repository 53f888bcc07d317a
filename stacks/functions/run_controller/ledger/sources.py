"""Reads AWS's reports about a deployment's instances and prices, as sightings and price histories.

Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Instance.html,
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html,
https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Activity.html (kept for six weeks),
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_EventInformation.html (kept for 48 hours) and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html (includes the price in force
at the start of the queried time).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ..events import INTERRUPTION, STATE_CHANGE
from ..fleet_clients.fleet import FleetIdentity
from ..fleet_clients.maintained import LAUNCHED, history_records
from .books import Pool
from .machines import Market, Sighting

DEPLOYMENT_TAG = "trainstack:deployment"
NOTICE_SECONDS = 120.0
"""Time from an interruption notice to the interruption. Source (2026-11):
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
BILLED_STATES = ("pending", "running")
INTERRUPTED = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
MAX_FILTER_VALUES = 200
"""Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html"""
_TRANSITION_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")
_ACTIVITY = re.compile(r"(Launching a new|Terminating) EC2 instance: (i-[0-9a-z-]+)")
_HAS_ENDED = "EC2 health check indicating it has been terminated or stopped"
"""Part of an activity's cause if the instance ended before the activity began. A terminating hook can delay the end of
such an activity until its timeout. Sources (2026-11):
https://repost.aws/knowledge-center/auto-scaling-instance-how-terminated and
https://github.com/cattle-ops/terraform-aws-gitlab-runner/pull/1117 (a terminated instance in Terminating:Wait)."""
_MARKETS: Mapping[str, Market] = {"spot": "spot", "capacity-block": "prepaid"}


def described(ec2: Any, deployment: str, tracked: Collection[str], now_unix_seconds: float) -> list[Sighting]:
    """Return EC2's description of the deployment's instances, and of tracked instances without tags.

    EC2 removes a terminated instance's tags before it removes the instance. Source (2026-11):
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html
    """
    found = _instances(ec2, {"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [deployment]}, now_unix_seconds)
    missing = sorted(set(tracked) - {one.instance_id for one in found})
    for first in range(0, len(missing), MAX_FILTER_VALUES):
        values = missing[first : first + MAX_FILTER_VALUES]
        found += _instances(ec2, {"Name": "instance-id", "Values": values}, now_unix_seconds)
    return found


def _instances(ec2: Any, condition: Mapping[str, Any], now_unix_seconds: float) -> list[Sighting]:
    pages = ec2.get_paginator("describe_instances").paginate(Filters=[condition])
    return [
        _instance(item, now_unix_seconds)
        for page in pages
        for reservation in page["Reservations"]
        for item in reservation["Instances"]
    ]


def _instance(item: Mapping[str, Any], now_unix_seconds: float) -> Sighting:
    is_billed = item["State"]["Name"] in BILLED_STATES
    return Sighting(
        instance_id=item["InstanceId"],
        instance_type=item["InstanceType"],
        zone=item.get("Placement", {}).get("AvailabilityZone", ""),
        market=_MARKETS.get(item.get("InstanceLifecycle", ""), "on_demand"),
        launched_unix_seconds=item["LaunchTime"].timestamp(),
        live_unix_seconds=now_unix_seconds if is_billed else None,
        gone_unix_seconds=None if is_billed else _ended(item, now_unix_seconds),
        reclaimed=item.get("StateReason", {}).get("Code") in INTERRUPTED,
        is_from_ec2=True,
    )


def _ended(item: Mapping[str, Any], now_unix_seconds: float) -> float:
    """Return the time of the last state change, which EC2 reports only for some reasons, or the current time."""
    stated = _TRANSITION_TIME.search(item.get("StateTransitionReason") or "")
    if stated is None:
        return now_unix_seconds
    changed = datetime.strptime(stated[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    return min(changed, now_unix_seconds)


def reported(fleet: FleetIdentity, client: Any, since_unix_seconds: float) -> list[Sighting]:
    """Return the launches and terminations that the fleet has recorded since the given time."""
    since = datetime.fromtimestamp(since_unix_seconds, UTC)
    if fleet.backend == "auto_scaling_group":
        groups = fleet.fleet_id.split(",")
        return [seen for group in groups for seen in _activities(client, group, since_unix_seconds)]
    if fleet.backend == "ec2_fleet":
        events = history_records(client.describe_fleet_history, FleetId=fleet.fleet_id, StartTime=since)
    else:
        describe = client.describe_spot_fleet_request_history
        events = history_records(describe, SpotFleetRequestId=fleet.fleet_id, StartTime=since)
    return [seen for event in events for seen in _fleet_event(event)]


def _activities(autoscaling: Any, group: str, since_unix_seconds: float) -> Iterator[Sighting]:
    """Yield a group's activities that began or ended after the given time, newest first."""
    pages = autoscaling.get_paginator("describe_scaling_activities").paginate(AutoScalingGroupName=group)
    for page in pages:
        for activity in page["Activities"]:
            if activity["StartTime"].timestamp() < since_unix_seconds:
                return
            found = _ACTIVITY.match(activity["Description"])
            if found is None:
                continue
            if found[1] != "Terminating":
                place = _json(activity.get("Details")).get("Availability Zone", "")
                started = activity["StartTime"].timestamp()
                yield Sighting(found[2], zone=place, launched_unix_seconds=started)
            elif _HAS_ENDED in activity.get("Cause", ""):
                yield Sighting(found[2], gone_unix_seconds=activity["StartTime"].timestamp())
            elif activity["StatusCode"] == "Successful" and "EndTime" in activity:
                yield Sighting(found[2], gone_unix_seconds=activity["EndTime"].timestamp())


def _fleet_event(event: Mapping[str, Any]) -> Iterator[Sighting]:
    about = event["EventInformation"]
    name, moment = about.get("InstanceId"), event["Timestamp"].timestamp()
    if not name:
        return
    if about.get("EventSubType") == LAUNCHED:
        details = _json(about.get("EventDescription"))
        kind, zone = str(details.get("instanceType", "")), str(details.get("availabilityZone", ""))
        yield Sighting(name, kind, zone, launched_unix_seconds=moment)
    elif about.get("EventSubType") == "terminated":
        yield Sighting(name, gone_unix_seconds=moment)


def from_events(events: Iterable[Mapping[str, Any]]) -> list[Sighting]:
    """Return the ends of instances, as reported by interruption notices and state changes."""
    found = []
    for event in events:
        kind, detail = event.get("detail-type"), event.get("detail", {})
        if kind not in (INTERRUPTION, STATE_CHANGE) or not isinstance(event.get("time"), str):
            continue
        moment = datetime.fromisoformat(event["time"]).timestamp() + (NOTICE_SECONDS if kind == INTERRUPTION else 0.0)
        found.append(Sighting(detail["instance-id"], gone_unix_seconds=moment))
    return found


def spot_prices(
    ec2: Any, pools: Mapping[Pool, float], now_unix_seconds: float
) -> dict[Pool, list[tuple[float, float]]]:
    """Return the price changes of pools since the given times, with the price in force at those times.

    Args:
        pools: The pools, each with the start of the earliest instance-hour.
    """
    if not pools:
        return {}
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=sorted({kind for kind, _ in pools}),
        Filters=[{"Name": "availability-zone", "Values": sorted({zone for _, zone in pools})}],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.fromtimestamp(min(pools.values()), UTC),
        EndTime=datetime.fromtimestamp(now_unix_seconds, UTC),
    )
    found: dict[Pool, list[tuple[float, float]]] = {}
    for page in pages:
        for item in page["SpotPriceHistory"]:
            pool = (item["InstanceType"], item["AvailabilityZone"])
            if pool in pools:
                found.setdefault(pool, []).append((item["Timestamp"].timestamp(), float(item["SpotPrice"])))
    return {pool: _oldest_first(changes) for pool, changes in found.items()}


def _oldest_first(changes: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sort changes by time. AWS returns the newest first, also among those of the same second."""
    return sorted(changes, key=lambda change: change[0], reverse=True)[::-1]


def _json(text: Any) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
