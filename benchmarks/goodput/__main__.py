"""Replay spot traces: the share of available time that a run would have put to use.

Each trace is replayed with the measured cost of saving and restoring, the interval policy of the trainer, and the rules
by which supervisors form gangs; against hourly synchronous saves, and 5-minute asynchronous ones, both without use of
the notice. The table is per trace; the sweep is of the restart time. Exit code 1 when the worst trace is below --bound.

What the traces cannot show: they are of V100 and CPU instances of 2022 and 2023, and newer GPUs are scarcer; an
availability trace is made of launch probes, so that a drop is not always the loss of a running instance, and what
happens between two ticks is not seen; when exactly the notice came is in none of them; where another zone or type would
have had capacity, nothing is known of what moving there costs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.goodput.costs import Costs, CostsError, read_costs
from benchmarks.goodput.machines import Machine, taken_at_once, taken_by_controller
from benchmarks.goodput.replay import Conditions, SavePolicy, notice_suffices, replay, young_interval_seconds
from benchmarks.goodput.traces import Trace, TraceError, read_traces

SWEEP_SECONDS = (60.0, 120.0, 180.0, 240.0, 300.0)
SECONDS_BETWEEN_FAILURES = 86400.0
"""Of a node, without a notice: a day is far less than hardware lasts, and leaves room for the software's faults."""
HOURLY_SECONDS = 3600.0
FIVE_MINUTES_SECONDS = 300.0


@dataclass(frozen=True)
class _Row:
    """One trace: share of its available time that was useful, by save policy.

    `stopped_early` is the share when every drop is the end of an instance, which stops training before it to save;
    `controlled` when the run controller asks for the machines, and has no other zone to go to.
    """

    trace: str
    days: float
    available_share: float
    drops: int
    shares: dict[str, float]
    stopped_early: float
    controlled: float


@dataclass(frozen=True)
class _SweepEntry:
    """The worst and the mean trace at one restart time."""

    policy: str
    restart_seconds: float
    worst: float
    mean: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay, print, write the JSON; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        traces = read_traces(options.traces)
        costs = read_costs(options.checkpoint)
    except (TraceError, CostsError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    policies = save_policies(costs)
    rows = [_row(trace, policies, costs, options) for trace in traces]
    sweep = _sweep(traces, policies[:2], costs, options)
    worst = min(rows, key=lambda row: row.shares[policies[0].name])
    met = worst.shares[policies[0].name] >= options.bound
    _print(rows, sweep, costs, options)
    verdict = "met" if met else "NOT met"
    print(f"\nworst trace: {worst.trace}: {worst.shares[policies[0].name]:.4f}; at least {options.bound}: {verdict}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "costs": asdict(costs),
        "restart_seconds": options.restart_seconds,
        "regroup_seconds": options.regroup_seconds,
        "gang_timeout_seconds": options.gang_timeout_seconds,
        "traces": [asdict(row) for row in rows],
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
    parser.add_argument("traces", type=Path, nargs="+", help="folders of traces, or trace files")
    parser.add_argument("--checkpoint", type=Path, help="result of the checkpoint benchmark; without: assumed figures")
    parser.add_argument(
        "--restart-seconds",
        type=float,
        default=120.0,
        help="granted launch to the first step: boot, staging, restore (default 120)",
    )
    parser.add_argument(
        "--regroup-seconds",
        type=float,
        default=15.0,
        help="from the end of a generation to the next one's restore, on machines that are up (default 15)",
    )
    parser.add_argument("--min-nodes", type=int, default=1, help="smallest gang that may train (default 1)")
    parser.add_argument(
        "--gang-timeout-seconds", type=float, default=60.0, help="patience of an incomplete gang (default 60)"
    )
    parser.add_argument(
        "--drop",
        choices=("auto", "notice", "reclaim"),
        default="auto",
        help="what a drop in a trace is: the notice (nothing is offered any more), or the end of the instance, which "
        "saves and stops shortly before; auto: reclaim for files with `preemption` in their path, which watched "
        "running instances, notice for launch probes",
    )
    parser.add_argument("--bound", type=float, default=0.95, help="what the worst trace must reach (default 0.95)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/goodput.json"), help="where the JSON goes")
    return parser


def save_policies(costs: Costs) -> list[SavePolicy]:
    """The trainer with and without a usable notice, and the two it is compared with."""

    def chosen(seconds_between_losses: float) -> float:
        # No more often than one save is through: the next one waits for it.
        young = young_interval_seconds(costs.blocked_seconds, seconds_between_losses)
        return max(costs.durable_seconds, young)

    def insured(_: float) -> float:
        # The notice saves what spot takes; the interval is for what comes without one.
        return chosen(SECONDS_BETWEEN_FAILURES)

    blocked, durable = costs.blocked_seconds, costs.durable_seconds
    suffices = notice_suffices(durable)
    return [
        SavePolicy("notice", blocked, durable, insured if suffices else chosen, uses_notice=suffices),
        SavePolicy("no notice", blocked, durable, chosen, uses_notice=False),
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


def _conditions(trace: Trace, costs: Costs, options: argparse.Namespace, restart_seconds: float) -> Conditions:
    is_notice = "preemption" not in trace.name if options.drop == "auto" else options.drop == "notice"
    return Conditions(
        nodes=trace.most,
        min_nodes=min(options.min_nodes, trace.most),
        restart_seconds=restart_seconds,
        regroup_seconds=options.regroup_seconds + costs.restore_seconds,
        gang_timeout_seconds=options.gang_timeout_seconds,
        drop_is_notice=is_notice,
    )


def _share(trace: Trace, machines: list[Machine], conditions: Conditions, policy: SavePolicy) -> float:
    return replay(machines, trace.seconds, conditions, policy).trained / trace.available_seconds


def _row(trace: Trace, policies: list[SavePolicy], costs: Costs, options: argparse.Namespace) -> _Row:
    conditions = _conditions(trace, costs, options, options.restart_seconds)
    machines = taken_at_once(trace, trace.most)
    controlled = taken_by_controller(trace, trace.most, conditions.min_nodes, options.gang_timeout_seconds)
    return _Row(
        trace=trace.name,
        days=trace.seconds / 86400.0,
        available_share=trace.available_seconds / (trace.seconds * trace.most),
        drops=trace.drops,
        shares={policy.name: _share(trace, machines, conditions, policy) for policy in policies},
        stopped_early=_share(trace, machines, replace(conditions, drop_is_notice=False), policies[0]),
        controlled=_share(trace, controlled, conditions, policies[0]),
    )


def _sweep(
    traces: list[Trace], policies: list[SavePolicy], costs: Costs, options: argparse.Namespace
) -> list[_SweepEntry]:
    fleets = [(trace, taken_at_once(trace, trace.most)) for trace in traces]
    entries = []
    for policy in policies:
        for seconds in SWEEP_SECONDS:
            shares = [
                _share(trace, machines, _conditions(trace, costs, options, seconds), policy)
                for trace, machines in fleets
            ]
            entries.append(_SweepEntry(policy.name, seconds, min(shares), sum(shares) / len(shares)))
    return entries


def _print(rows: list[_Row], sweep: list[_SweepEntry], costs: Costs, options: argparse.Namespace) -> None:
    figures = ", ".join(f"{name} {value}" for name, value in asdict(costs).items() if name != "source")
    print(f"costs ({costs.source}): {figures}")
    print(
        f"restart {options.restart_seconds} s, regroup {options.regroup_seconds} s and the restore, gang time-out "
        f"{options.gang_timeout_seconds} s, smallest gang {options.min_nodes}\n\nuseful share of the available time:"
    )
    names = [*rows[0].shares, "early stop", "controller"]
    width = max(len(row.trace) for row in rows)
    print(f"{'trace':{width}}  days  avail  drops  " + "  ".join(f"{name:>11}" for name in names))
    for row in rows:
        cells = [*row.shares.values(), row.stopped_early, row.controlled]
        print(
            f"{row.trace:{width}}  {row.days:4.1f}  {row.available_share:5.2f}  {row.drops:5d}  "
            + "  ".join(f"{cell:11.3f}" for cell in cells)
        )
    print(
        "early stop: as `notice`, if each drop were the end of an instance that stopped in time for its last save.\n"
        "controller: as `notice`, with machines asked for by the run controller, which gives up and waits in between.\n"
        "\nrestart time   " + "  ".join(f"{seconds:5.0f} s" for seconds in SWEEP_SECONDS)
    )
    for name in dict.fromkeys(entry.policy for entry in sweep):
        mine = [entry for entry in sweep if entry.policy == name]
        print(f"{name:9} worst " + "  ".join(f"{entry.worst:7.3f}" for entry in mine))
        print(f"{name:9} mean  " + "  ".join(f"{entry.mean:7.3f}" for entry in mine))
    caveats = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip()
    print(f"\n{caveats}")


if __name__ == "__main__":
    sys.exit(main())
