"""The Spot placement scores of the candidate subnets' zones.

A score is AWS's estimate, from 1 to 10, of how likely a request is to succeed. It replaces the assumed availability of
a place, so the controller's own observations outweigh it after some hours. AWS returns low scores for fewer than three
instance types, and limits the number of different requests per day, so the controller always sends the same request,
once every SCORE_HOURS. Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-sps-works.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from ..places import HOUR, MAX_SCORE
from ..situation import ControllerState, Settings
from ..zone_choice import chooses

SCORE_HOURS = 6.0
MIN_TYPES = 3
"""Fewest instance types for which AWS returns meaningful scores."""


class Scores(Protocol):
    """Reads the placement scores."""

    def now(self, nodes: int) -> tuple[Mapping[str, int], str | None]:
        """Return the known scores by subnet, and the reason why scores are missing."""


def is_due(settings: Settings, state: ControllerState, now_unix_seconds: float) -> bool:
    """Return True if scores influence the controller's choice of zones, and the known scores are outdated."""
    if not chooses(settings) or len(settings.places[0].instance_type.split(",")) < MIN_TYPES:
        return False
    asked = state.scored_unix_seconds
    return asked is None or now_unix_seconds - asked >= SCORE_HOURS * HOUR


class PlacementScores:
    """The scores for launching all nodes in one zone. `client` creates the client for a service."""

    def __init__(self, settings: Settings, client: Callable[[str], Any]) -> None:
        self._settings = settings
        self._client = client

    def now(self, nodes: int) -> tuple[Mapping[str, int], str | None]:
        """Return the current scores for `nodes` instances."""
        settings = self._settings
        try:
            ec2 = self._client("ec2")
            subnets = ec2.describe_subnets(SubnetIds=list(settings.subnets))["Subnets"]
            answer = ec2.get_spot_placement_scores(
                InstanceTypes=settings.places[0].instance_type.split(","),
                TargetCapacity=nodes,
                SingleAvailabilityZone=True,
                RegionNames=[settings.places[0].region],
            )
        except (ClientError, BotoCoreError) as error:
            return {}, f"cannot read the placement scores, so the places are ranked without them: {error!r}"
        of_zone = {each["AvailabilityZoneId"]: int(each["Score"]) for each in answer["SpotPlacementScores"]}
        # AWS returns the ten best zones. The others are known only to be worse.
        known = {each["SubnetId"]: of_zone.get(each["AvailabilityZoneId"]) for each in subnets}
        return {subnet: score for subnet, score in known.items() if score and 1 <= score <= MAX_SCORE}, None
