"""Replay spot traces to determine the share of the available time that a run would have used for training.

Each trace is replayed with the measured costs of saves, restores and changes in place (`parallel.reform`), the
trainer's save interval, and the rules by which supervisors form and change gangs. For comparison, it is also replayed
without changes in place, with hourly synchronous saves, and with asynchronous saves every 5 minutes; the latter two
ignore the notice. Prints a table of the results by trace, and shows how the results depend on the restart time. One
more trace is made up: 16 nodes, one of which is launched or lost every 8 minutes, and 55 % availability. Exits with 1
if, with changes in place, the worst trace is below --bound or the made-up trace is below 0.95.

Limitations: the traces cover V100 and CPU instances in 2022 and 2023, and newer GPUs are scarcer. Availability
traces consist of launch probes, so a drop is not always the loss of a running instance, and changes between two ticks
are missing. The traces do not state when notices were sent. The cost of moving to another zone or type is unknown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.goodput.costs import ChangeCosts, Costs, CostsError, read_change_costs, read_costs
from benchmarks.goodput.machines import Machine, launched_at_once, launched_by_controller
from benchmarks.goodput.replay import Conditions, SavePolicy, notice_suffices, replay, young_interval_seconds
from benchmarks.goodput.traces import Trace, TraceError, busy_trace, read_traces

SWEEP_SECONDS = (60.0, 120.0, 180.0, 240.0, 300.0)
SECONDS_BETWEEN_FAILURES = 86400.0
"""A node's mean time between failures without notice. A day is pessimistic, to allow for software faults."""
HOURLY_SECONDS = 3600.0
FIVE_MINUTES_SECONDS = 300.0
BUSY_BOUND = 0.95
"""Minimum share for the made-up trace."""
IN_PLACE = "in place"
"""Name of the policy with changes in place, which otherwise is the first of the save policies."""


@dataclass(frozen=True)
class _Row:
    """Results for a trace: the useful share of its available time under each save policy.

    `in_place` is with changes in place. `stopped_early` assumes that each drop is the termination of an instance that
    stopped training early enough to save. `controlled` assumes that the run controller requests the instances, in a
    single zone.
    """

    trace: str
    days: float
    available_share: float
    drops: int
    shares: dict[str, float]
    in_place: float
    stopped_early: float
    controlled: float


@dataclass(frozen=True)
class _SweepEntry:
    """The minimum and the mean over all traces at one restart time."""

    policy: str
    restart_seconds: float
    worst: float
    mean: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the traces, print and write the results, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        traces = read_traces(options.traces)
        costs = read_costs(options.checkpoint)
        changes = read_change_costs(options.changes)
    except (TraceError, CostsError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    policies = save_policies(costs)
    rows = [_row(trace, policies, costs, changes, options) for trace in traces]
    busy = _row(busy_trace(), policies, costs, changes, options)
    fleets = [(trace, launched_at_once(trace, trace.max_count)) for trace in traces]
    sweep = _sweep(fleets, IN_PLACE, policies[0], costs, changes, options)
    for policy in policies[:2]:
        sweep += _sweep(fleets, policy.name, policy, costs, None, options)
    worst = min(rows, key=lambda row: row.in_place)
    met = worst.in_place >= options.bound and busy.in_place >= BUSY_BOUND
    _print([*rows, busy], sweep, costs, changes, options)
    for row, bound in ((worst, options.bound), (busy, BUSY_BOUND)):
        verdict = "met" if row.in_place >= bound else "NOT met"
        name = "worst trace: " if row is worst else ""
        print(f"{name}{row.trace}: {row.in_place:.4f} (minimum {bound}): {verdict}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "costs": asdict(costs),
        "changes": asdict(changes),
        "restart_seconds": options.restart_seconds,
        "regroup_seconds": options.regroup_seconds,
        "gang_timeout_seconds": options.gang_timeout_seconds,
        "traces": [asdict(row) for row in (*rows, busy)],
        "sweep": [asdict(entry) for entry in sweep],
        "bound": options.bound,
        "met": met,
    }
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if met else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.goodput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="+", help="trace files, or folders of trace files")
    parser.add_argument("--checkpoint", type=Path, help="result of the checkpoint benchmark (default: assumed costs)")
    parser.add_argument("--changes", type=Path, help="result of the boot benchmark (default: assumed costs)")
    parser.add_argument(
        "--restart-seconds",
        type=float,
        default=120.0,
        help="time from a granted launch to the first step, including boot, staging and restore (default 120)",
    )
    parser.add_argument(
        "--regroup-seconds",
        type=float,
        default=15.0,
        help="time from the end of a generation to the restore of the next one, on running instances (default 15)",
    )
    parser.add_argument("--min-nodes", type=int, default=1, help="minimum size of a gang (default 1)")
    parser.add_argument(
        "--gang-timeout-seconds",
        type=float,
        default=60.0,
        help="time that an incomplete gang waits for nodes (default 60)",
    )
    parser.add_argument(
        "--drop",
        choices=("auto", "notice", "reclaim"),
        default="auto",
        help="meaning of a drop in a trace: the notice, or the termination of an instance that saves and stops "
        "shortly before. auto: reclaim for files with `preemption` in their path, which record running instances, "
        "and notice for launch probes",
    )
    parser.add_argument(
        "--bound",
        type=float,
        default=0.95,
        help=f"minimum share for the worst trace (default 0.95); that of the made-up trace is always {BUSY_BOUND}",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/goodput.json"), help="path of the JSON report")
    return parser


def save_policies(costs: Costs) -> list[SavePolicy]:
    """Return the trainer's policies with and without a usable notice, and two other policies for comparison."""

    def automatic(seconds_between_losses: float) -> float:
        # The interval is at least the duration of a save, since the next save waits for it.
        young = young_interval_seconds(costs.blocked_seconds, seconds_between_losses)
        return max(costs.durable_seconds, young)

    def with_notice(_: float) -> float:
        # The notice covers spot interruptions; the interval only has to cover failures without a notice.
        return automatic(SECONDS_BETWEEN_FAILURES)

    blocked, durable = costs.blocked_seconds, costs.durable_seconds
    suffices = notice_suffices(durable)
    return [
        SavePolicy("notice", blocked, durable, with_notice if suffices else automatic, uses_notice=suffices),
        SavePolicy("no notice", blocked, durable, automatic, uses_notice=False),
        SavePolicy(
            "5 min async",
            costs.other_blocked_seconds,
            costs.other_durable_seconds,
            lambda _: FIVE_MINUTES_SECONDS,
            uses_notice=False,
        ),
        SavePolicy(
            "hourly sync", costs.synchronous_seconds, costs.synchronous_seconds, lambda _: HOURLY_SECONDS, False
        ),
    ]


def _conditions(
    trace: Trace, costs: Costs, changes: ChangeCosts | None, options: argparse.Namespace, restart_seconds: float
) -> Conditions:
    is_notice = "preemption" not in trace.name if options.drop == "auto" else options.drop == "notice"
    return Conditions(
        nodes=trace.max_count,
        min_nodes=min(options.min_nodes, trace.max_count),
        restart_seconds=restart_seconds,
        regroup_seconds=options.regroup_seconds + costs.restore_seconds,
        gang_timeout_seconds=options.gang_timeout_seconds,
        drop_is_notice=is_notice,
        changes=changes,
    )


def _share(trace: Trace, machines: list[Machine], conditions: Conditions, policy: SavePolicy) -> float:
    return replay(machines, trace.seconds, conditions, policy).trained / trace.available_seconds


def _row(
    trace: Trace, policies: list[SavePolicy], costs: Costs, changes: ChangeCosts, options: argparse.Namespace
) -> _Row:
    conditions = _conditions(trace, costs, None, options, options.restart_seconds)
    machines = launched_at_once(trace, trace.max_count)
    controlled = launched_by_controller(trace, trace.max_count, conditions.min_nodes, options.gang_timeout_seconds)
    return _Row(
        trace=trace.name,
        days=trace.seconds / 86400.0,
        available_share=trace.available_seconds / (trace.seconds * trace.max_count),
        drops=trace.drops,
        shares={policy.name: _share(trace, machines, conditions, policy) for policy in policies},
        in_place=_share(trace, machines, replace(conditions, changes=changes), policies[0]),
        stopped_early=_share(trace, machines, replace(conditions, drop_is_notice=False), policies[0]),
        controlled=_share(trace, controlled, conditions, policies[0]),
    )


def _sweep(
    fleets: list[tuple[Trace, list[Machine]]],
    name: str,
    policy: SavePolicy,
    costs: Costs,
    changes: ChangeCosts | None,
    options: argparse.Namespace,
) -> list[_SweepEntry]:
    entries = []
    for seconds in SWEEP_SECONDS:
        shares = [
            _share(trace, machines, _conditions(trace, costs, changes, options, seconds), policy)
            for trace, machines in fleets
        ]
        entries.append(_SweepEntry(name, seconds, min(shares), sum(shares) / len(shares)))
    return entries


def _print(
    rows: list[_Row], sweep: list[_SweepEntry], costs: Costs, changes: ChangeCosts, options: argparse.Namespace
) -> None:
    for name, each in (("costs", costs), ("changes in place", changes)):
        figures = ", ".join(f"{key} {value:.4g}" for key, value in asdict(each).items() if key != "source")
        print(f"{name} ({each.source}): {figures}")
    print(
        f"restart {options.restart_seconds} s, regroup {options.regroup_seconds} s plus restore, gang timeout "
        f"{options.gang_timeout_seconds} s, minimum gang {options.min_nodes}\n\nuseful share of the available time:"
    )
    names = [IN_PLACE, *rows[0].shares, "early stop", "controller"]
    width = max(len(row.trace) for row in rows)
    print(f"{'trace':{width}}  days  avail  drops  " + "  ".join(f"{name:>11}" for name in names))
    for row in rows:
        cells = [row.in_place, *row.shares.values(), row.stopped_early, row.controlled]
        print(
            f"{row.trace:{width}}  {row.days:4.1f}  {row.available_share:5.2f}  {row.drops:5d}  "
            + "  ".join(f"{cell:11.3f}" for cell in cells)
        )
    print(
        "in place: as `notice`, with changes in place.\n"
        "early stop: as `notice`, if each drop is the termination of an instance that stops early enough to save.\n"
        "controller: as `notice`, if the run controller requests the instances, with its timeouts and waits.\n"
        "\nrestart time   " + "  ".join(f"{seconds:5.0f} s" for seconds in SWEEP_SECONDS)
    )
    for name in dict.fromkeys(entry.policy for entry in sweep):
        entries = [entry for entry in sweep if entry.policy == name]
        print(f"{name:9} worst " + "  ".join(f"{entry.worst:7.3f}" for entry in entries))
        print(f"{name:9} mean  " + "  ".join(f"{entry.mean:7.3f}" for entry in entries))
    limitations = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip()
    print(f"\n{limitations}\n")


if __name__ == "__main__":
    sys.exit(main())
