"""The costs of an execution's runs, from the ledgers of the deployment's fleets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from stacks.functions.pipeline_runs.store import SLOTS, started_prefix
from trainstack.account import object_keys
from trainstack.costs.cost import fleet_entries
from trainstack.pipelines.executions import Pipeline
from trainstack.session import Account

SHUTDOWN_SECONDS = 3600.0
"""Time after the end of an execution in which the instances of its last runs terminate."""


@dataclass(frozen=True)
class Costs:
    """What the instances of the runs have cost that an execution started.

    Attributes:
        usd: The cost of each run, by step.
        problems: A message for each object of a ledger that cannot be read.
    """

    usd: Mapping[str, Mapping[str, float]]
    problems: tuple[str, ...]

    def of_step(self, step: str) -> float:
        """Return the cost of a step's runs, USD."""
        return sum(self.usd.get(step, {}).values())

    def of_run(self, step: str, run: str) -> float:
        """Return the cost of a run, USD: 0 if its result is from an earlier execution."""
        return self.usd.get(step, {}).get(run, 0.0)


def execution_costs(opened: Account, pipeline: Pipeline, arn: str) -> Costs:
    """Return the costs of an execution so far.

    The ledger has an object for each clock hour. A run that an earlier execution started is counted from the hour in
    which this execution started.
    """
    s3, bucket = opened.client("s3"), pipeline.control_bucket
    execution = opened.client("stepfunctions").describe_execution(executionArn=arn)
    ended = execution.get("stopDate")
    last = time.time() if ended is None else ended.timestamp() + SHUTDOWN_SECONDS
    hours = (execution["startDate"].timestamp(), last)
    usd: dict[str, dict[str, float]] = {}
    steps: dict[str, str] = {}
    for key in object_keys(s3, bucket, started_prefix(execution["name"])):
        step, run = key.split("/")[-2:]
        usd.setdefault(step, {})[run] = 0.0
        steps[run] = step
    problems: list[str] = []
    for key in object_keys(s3, bucket, SLOTS) if steps else ():
        entries, unreadable = fleet_entries(s3, bucket, key.removeprefix(SLOTS).removesuffix(".json"), hours)
        problems += unreadable
        for entry in entries:
            if entry.run in steps:
                usd[steps[entry.run]][entry.run] += entry.charge.usd
    return Costs(usd, tuple(problems))
