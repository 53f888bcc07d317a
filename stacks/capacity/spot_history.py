"""Reads what AWS publishes about the past of Spot Instances: prices of 90 days, and interruption frequencies.

Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html (up to 90
days) and the data file of the Spot Instance Advisor, https://aws.amazon.com/ec2/spot/instance-advisor/, for which AWS
has no API: the share of instances that EC2 interrupted in the trailing month, as a range of percentages.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

HISTORY_DAYS = 90
ADVISOR_URL = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
ADVISOR_SECONDS = 30.0
MAX_ADVISOR_BYTES = 64 * 2**20


class AdvisorError(RuntimeError):
    """The Spot Instance Advisor's file cannot be read."""


@dataclass(frozen=True)
class PriceRange:
    """A type's spot prices over time in all zones of a region, in USD per hour: 10% and 90% quantiles, and the mean."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class Interruptions:
    """The share of a type's instances that EC2 interrupts per month, in percent: from `low` to `high`."""

    low: float
    high: float


def price_ranges(ec2: Any, names: Sequence[str], now: datetime) -> dict[str, PriceRange]:
    """Return each type's prices of the last 90 days, weighted by the time for which they were in force."""
    if not names:
        return {}
    start = now - timedelta(days=HISTORY_DAYS)
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=list(names), ProductDescriptions=["Linux/UNIX"], StartTime=start, EndTime=now
    )
    pools: dict[tuple[str, str], list[tuple[datetime, float]]] = {}
    for page in pages:
        for item in page["SpotPriceHistory"]:
            pool = (item["InstanceType"], item["AvailabilityZone"])
            pools.setdefault(pool, []).append((item["Timestamp"], float(item["SpotPrice"])))
    weights: dict[str, list[tuple[float, float]]] = {}
    for (name, _), changes in pools.items():
        weights.setdefault(name, []).extend(_weighted(sorted(changes), start, now))
    return {name: _range(prices) for name, prices in weights.items() if prices}


def _weighted(
    changes: Sequence[tuple[datetime, float]], start: datetime, end: datetime
) -> Iterable[tuple[float, float]]:
    """Yield each price with the seconds for which it was in force. A history includes the price at its start."""
    for (since, usd), (until, _) in pairwise([*changes, (end, 0.0)]):
        seconds = (until - max(since, start)).total_seconds()
        if seconds > 0:
            yield usd, seconds


def _range(prices: Sequence[tuple[float, float]]) -> PriceRange:
    ordered = sorted(prices)
    total = sum(seconds for _, seconds in ordered)

    def at(share: float) -> float:
        passed = 0.0
        for usd, seconds in ordered:
            passed += seconds
            if passed >= share * total:
                return usd
        return ordered[-1][0]

    mean = sum(usd * seconds for usd, seconds in ordered) / total
    return PriceRange(round(at(0.1), 4), round(mean, 4), round(at(0.9), 4))


def read_advisor(url: str = ADVISOR_URL) -> Mapping[str, Any]:
    """Return the Spot Instance Advisor's document.

    Raises:
        AdvisorError: The file cannot be read, or is not the known document.
    """
    if not url.startswith(("https://", "http://127.")):
        raise AdvisorError(f"{url}: not an https URL")
    try:
        with urllib.request.urlopen(url, timeout=ADVISOR_SECONDS) as answer:  # noqa: S310 - the scheme is checked above
            document = json.loads(answer.read(MAX_ADVISOR_BYTES))
    except (OSError, ValueError, RecursionError, urllib.error.URLError) as error:
        raise AdvisorError(f"{url}: {error}") from error
    if not isinstance(document, dict) or not {"ranges", "spot_advisor"} <= set(document):
        raise AdvisorError(f"{url}: not the Spot Instance Advisor's document")
    return document


def interruptions(advisor: Mapping[str, Any], region: str, names: Sequence[str]) -> dict[str, Interruptions]:
    """Return the interruption frequencies of a region's Linux instances.

    Raises:
        AdvisorError: The document does not have the known structure.
    """
    try:
        highest = {int(each["index"]): float(each["max"]) for each in advisor["ranges"]}
        listed = advisor["spot_advisor"].get(region, {}).get("Linux", {})
        found = {}
        for name in names:
            if name in listed:
                index = int(listed[name]["r"])
                found[name] = Interruptions(highest.get(index - 1, 0.0), highest[index])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AdvisorError(f"the Spot Instance Advisor's document has an unknown structure: {error!r}") from error
    return found
