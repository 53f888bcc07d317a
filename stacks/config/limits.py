"""The `limits` section: the cost and the duration at which a run is saved and stopped, and its deadline."""

from __future__ import annotations

from stacks.config.setting import Section, setting
from stacks.functions.run_controller.deadlines.goals import MAX_DEADLINE_HOURS, OnMiss


class LimitsConfig(Section):
    """Limits for a run. The run controller checks them every minute against the instance ledger."""

    usd: float | None = setting(
        "Maximum cost of the run's instances, USD, at which the controller saves and stops the run; `null`: no limit. "
        "Volumes and other resources are not included. A run exceeds the limit by at most its cost between two steps "
        "of the run controller, usually one minute, and its last save. Nodes do not know the cost: while the "
        "controller fails or AWS Lambda is down, the limit does not apply, and an alarm reports the problem. "
        "`ec2_fleet` and `spot_fleet` have no terminating hook: their nodes have 20 s to save during the shutdown, and "
        "a longer save loses up to one checkpoint interval. To resume the run, raise the limit and deploy again.",
        edit="in place",
        default=None,
        gt=0,
    )
    run_hours: float | None = setting(
        "Number of hours with running instances after which the controller saves and stops the run; `null`: no limit.",
        edit="in place",
        default=None,
        gt=0,
    )
    deadline_hours: float | None = setting(
        "Deadline for finishing the run, in hours from its first request for nodes; `null`: no deadline. The time "
        "includes waiting for capacity. An edit changes the deadline of the current run. If the key is removed, "
        "On-Demand nodes that were bought to meet the deadline save and are replaced.",
        edit="in place",
        default=None,
        gt=0,
        le=MAX_DEADLINE_HOURS,
    )
    on_deadline_miss: OnMiss = setting(
        "Action if spot capacity alone might not meet the deadline. `on_demand`: the controller buys On-Demand "
        "Instances for missing nodes, as late as possible, and replaces them with spot instances when that is cheaper "
        "(`ec2_fleet` and `spot_fleet` keep them). `stop`: the controller saves and stops the run as soon as it can no "
        "longer finish in time. `continue`: `trainstack status` and `trainstack why` report the problem, and nothing "
        "else changes.",
        edit="in place",
        default="on_demand",
    )
    training_hours: float | None = setting(
        "Expected training time, in hours, of the complete run with all nodes and without interruptions. The "
        "controller uses it until the run reports its speed. `null`: an estimate from the model's size and the GPUs' "
        "peak rates, if both are known. `python -m training bench` measures the speed.",
        edit="in place",
        default=None,
        gt=0,
    )
    warn_at_percent: int = setting(
        "Percentage of `usd` at which an alarm notifies the deployment's topic.",
        edit="in place",
        default=80,
        ge=1,
        le=100,
    )
