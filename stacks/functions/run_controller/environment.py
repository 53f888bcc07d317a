"""The run controller's settings, as defined by its environment variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import policy
from .deadlines.goals import Deadline
from .events import retry_command
from .fleet_clients import FleetIdentity
from .ledger.machines import OnDemandPrices
from .market.moving import may_move
from .places import Place
from .spending import Limits


@dataclass(frozen=True)
class Environment:
    """The controller's fleet, run and settings, read from the function's environment variables.

    `node_role_id` is the id of the nodes' role, which is part of the names of their records. `dataset_bucket` is empty
    if a volume can contain the dataset.
    """

    fleet: FleetIdentity
    node_role_id: str
    run_parameter: str
    desired_parameter: str
    control_bucket: str
    dataset_bucket: str
    settings: policy.Settings
    deployment: str
    on_demand_prices: OnDemandPrices

    @classmethod
    def of(cls, variables: Mapping[str, Any]) -> Environment:
        """Read the variables that the stack sets."""
        return cls(
            fleet=FleetIdentity(
                backend=variables["BACKEND"],
                fleet_id=variables["FLEET_ID"],
                maximum=int(variables["NODES"]),
                on_demand_base=int(variables["ON_DEMAND_BASE"]),
            ),
            node_role_id=variables["NODE_ROLE_ID"],
            run_parameter=variables["RUN_PARAMETER"],
            desired_parameter=variables["DESIRED_PARAMETER"],
            control_bucket=variables["CONTROL_BUCKET"],
            dataset_bucket=variables["DATASET_BUCKET"],
            settings=policy.Settings(
                subnets=tuple(variables["SUBNET_IDS"].split(",")),
                one_subnet_at_a_time=variables["ONE_SUBNET_AT_A_TIME"] == "true",
                gang_timeout_seconds=float(variables["GANG_TIMEOUT_SECONDS"]),
                boot_failure_limit=int(variables["BOOT_FAILURE_LIMIT"]),
                boot_timeout_seconds=float(variables["BOOT_TIMEOUT_SECONDS"]),
                retry_command=retry_command(variables["DEPLOYMENT"]),
                choose=variables["CHOOSE"],
                places=_places(variables["PLACES"]),
                deadline=_deadline(variables),
                limits=Limits(_limit(variables["LIMIT_USD"]), _limit(variables["LIMIT_RUN_HOURS"])),
                moves=may_move(variables["CHOOSE"], variables["BACKEND"], int(variables["ON_DEMAND_BASE"])),
            ),
            deployment=variables["DEPLOYMENT"],
            on_demand_prices=OnDemandPrices(json.loads(variables["ON_DEMAND_USD_PER_HOUR"])),
        )


def _deadline(variables: Mapping[str, Any]) -> Deadline | None:
    """Return the deadline, with the price of the first instance type, which Auto Scaling groups buy first."""
    hours = _limit(variables["DEADLINE_HOURS"])
    if hours is None:
        return None
    prices = json.loads(variables["ON_DEMAND_USD_PER_HOUR"])
    first = (*json.loads(variables["PLACES"])["instance_types"], "")[0]
    return Deadline(
        hours=hours,
        on_miss=variables["ON_DEADLINE_MISS"],
        training_hours=float(variables["TRAINING_HOURS"]),
        on_demand_usd_per_hour=prices.get(first),
    )


def _places(text: str) -> tuple[Place, ...]:
    """Return the places: {region, instance_types, zones}, with one zone for each subnet; none if the text is empty."""
    if not text:
        return ()
    document = json.loads(text)
    kinds = ",".join(document["instance_types"])
    return tuple(Place(document["region"], zone, kinds, "spot") for zone in document["zones"])


def _limit(text: str) -> float | None:
    return float(text) if text else None
