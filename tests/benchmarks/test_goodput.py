"""Replay of spot traces, compared with manual calculations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.goodput.__main__ import main
from benchmarks.goodput.costs import ChangeCosts, CostsError, read_change_costs, read_costs
from benchmarks.goodput.machines import Machine, launched_at_once, launched_by_controller
from benchmarks.goodput.replay import Conditions, SavePolicy, replay, young_interval_seconds
from benchmarks.goodput.traces import Trace, TraceError, busy_trace, read_traces

HOUR = 3600.0


def policy(uses_notice: bool, interval_seconds: float = 1000.0, blocked_seconds: float = 2.0) -> SavePolicy:
    return SavePolicy("p", blocked_seconds, 10.0, lambda _: interval_seconds, uses_notice)


def conditions(nodes: int = 1, drop_is_notice: bool = True, gang_timeout_seconds: float = 50.0) -> Conditions:
    return Conditions(nodes, 1, 100.0, 30.0, gang_timeout_seconds, drop_is_notice)


def trained(counts: list[int], given: Conditions, saves: SavePolicy, gap_seconds: float = HOUR) -> float:
    trace = Trace("t", gap_seconds, tuple(counts))
    return replay(launched_at_once(trace, given.nodes), trace.seconds, given, saves).trained


def test_one_instance_for_an_hour() -> None:
    stepping = HOUR - 100.0
    saving = 3 * 2.0
    assert trained([0, 1, 0], conditions(), policy(uses_notice=True)) == stepping - saving
    # It saves at the notice, and stops 1.5 save durations plus three steps before its termination.
    early = conditions(drop_is_notice=False)
    assert trained([0, 1, 0], early, policy(uses_notice=True)) == stepping - (10.0 + 15.0 + 3.0) - saving - 2.0
    # Without a save at the end, the steps after the third save are lost.
    assert trained([0, 1, 0], conditions(), policy(uses_notice=False)) == 3000.0 - saving


def test_save_counts_only_when_durable() -> None:
    seconds = 100.0 + 1005.0  # the save at 1000 s takes 10 s
    assert trained([1, 0], conditions(), policy(uses_notice=False), gap_seconds=seconds) == 0.0
    assert trained([1, 0], conditions(), policy(uses_notice=False), gap_seconds=seconds + 6.0) == 1000.0 - 2.0


def test_end_of_the_trace_loses_nothing() -> None:
    assert trained([1], conditions(), policy(uses_notice=False)) == HOUR - 100.0 - 3 * 2.0


def test_instance_that_is_lost_during_its_start_trains_nothing() -> None:
    assert trained([1, 0, 0], conditions(), policy(uses_notice=True), gap_seconds=90.0) == 0.0


def test_gang_continues_with_one_node_and_grows_again() -> None:
    saves = policy(uses_notice=True, interval_seconds=1e9)
    both = HOUR - 100.0 - 30.0  # the second node completes the gang
    alone = HOUR - 10.0 - 30.0  # a save and a regroup
    both_again = (
        HOUR - 100.0 - 10.0 - 30.0
    )  # it boots while the other node trains; then the other node saves and regroups
    got = trained([2, 1, 2], conditions(nodes=2), saves)
    assert got == 2 * both + (alone + 100.0) + 2 * both_again


def test_first_gang_waits_for_all_nodes() -> None:
    saves = policy(uses_notice=True, interval_seconds=1e9)
    assert trained([0, 1, 0, 0], conditions(nodes=2), saves) == HOUR - 100.0 - 50.0 - 30.0


CHANGES = ChangeCosts("a test", leave_seconds=1.0, loss_seconds=5.0, join_seconds=2.0)
NEVER = 1e12
"""An interval between saves that is longer than every trace."""


def test_gang_changes_in_place() -> None:
    saves = policy(uses_notice=True, interval_seconds=NEVER)
    both = HOUR - 100.0 - 30.0
    alone = HOUR - 1.0 + 100.0  # a pause; the second node boots while the first one trains
    both_again = HOUR - 100.0 - 2.0
    got = trained([2, 1, 2], replace(conditions(nodes=2), changes=CHANGES), saves)
    assert got == pytest.approx(2 * both + alone + 2 * both_again)
    without_notice = trained(
        [2, 1, 2], replace(conditions(nodes=2), changes=CHANGES), policy(uses_notice=False, interval_seconds=NEVER)
    )
    assert without_notice == pytest.approx(got - (5.0 - 1.0))


def test_loss_of_all_nodes_repeats_the_steps_since_the_last_save() -> None:
    got = trained([2, 0], replace(conditions(nodes=2), changes=CHANGES), policy(uses_notice=False))
    # It trains from 130 s. Saves take 2 of 1000 s; the last one that is durable is the third.
    assert got == pytest.approx(2 * 3000.0 * (1 - 2 / 1000))


@pytest.mark.parametrize(
    ("third_launched", "pauses"),
    [
        (1001.0, [(1101.0, 1, 2.0)]),  # both nodes join together
        (1003.0, [(1102.0, 1, 2.0), (1104.0, 2, 2.0)]),  # the first one has waited for 2 s, and joins alone
        (1200.0, [(1100.0, 1, 2.0), (1300.0, 2, 2.0)]),  # the third node is not known yet
    ],
)
def test_nodes_join_together(third_launched: float, pauses: list[tuple[float, int, float]]) -> None:
    machines = [Machine(launched, 5000.0, outlives=True) for launched in (0.0, 1000.0, third_launched)]
    given = replace(conditions(nodes=3), changes=CHANGES)
    got = replay(machines, 5000.0, given, policy(uses_notice=True, interval_seconds=NEVER)).trained
    begins, expected = 100.0 + 50.0 + 30.0, 0.0  # the first node has waited for the gang timeout
    for at, members, seconds in pauses:
        expected += max(0.0, at - begins) * members
        begins = at + seconds
    assert got == pytest.approx(expected + (5000.0 - begins) * 3)


def test_made_up_trace_changes_at_every_tick() -> None:
    trace = busy_trace()
    assert {abs(before - after) for before, after in zip(trace.counts, trace.counts[1:], strict=False)} == {1}
    assert trace.available_seconds / (16 * trace.seconds) == pytest.approx(0.55, abs=0.03)


def test_reads_measured_costs_of_changes(tmp_path: Path) -> None:
    def gang(pause_seconds: float) -> dict[str, dict[str, float]]:
        names = ("planned_leave", "killed_process", "machine_cut_off", "join")
        return {name: {"pause_seconds": pause_seconds, "next_step_seconds": 4 * pause_seconds} for name in names}

    path = tmp_path / "boot.json"
    path.write_text(json.dumps({"reforms": {"2_nodes": gang(0.75), "4_nodes": gang(1.5)}}))
    assert read_change_costs(path) == ChangeCosts(str(path), 1.5, 6.0, 1.5)
    path.write_text(json.dumps({"reforms": {"2_nodes": {"join": {"pause_seconds": -1}}}}))
    with pytest.raises(CostsError, match="planned_leave.pause_seconds .*join.pause_seconds .-1"):
        read_change_costs(path)
    path.write_text("{}")
    with pytest.raises(CostsError, match="no section 'reforms'"):
        read_change_costs(path)


def test_controller_keeps_requesting_without_capacity() -> None:
    trace = Trace("t", 60.0, (1,) * 30 + (0,) * 45 + (1,) * 60)
    at_once = launched_at_once(trace, 1)
    controlled = launched_by_controller(trace, 1, 1, gang_timeout_seconds=600.0)
    assert [machine.launched_seconds for machine in at_once] == [0.0, 4500.0]
    assert controlled[0].launched_seconds == 0.0
    assert controlled[0].lost_seconds == at_once[0].lost_seconds == 1800.0
    assert controlled[1].launched_seconds == 4500.0


def test_young_interval() -> None:
    assert young_interval_seconds(2.0, 3600.0) == 120.0


def test_reports_all_invalid_traces(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"metadata": {"gap_seconds": 0}, "data": [1]}')
    (tmp_path / "c.json").write_text('{"metadata": {"gap_seconds": 1}, "data": [1, -1]}')
    (tmp_path / "d.json").write_text('{"metadata": {"gap_seconds": 1}, "data": [0]}')
    with pytest.raises(TraceError) as caught:
        read_traces([tmp_path, tmp_path / "nowhere.json"])
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0].rpartition("/")[2] for line in lines] == [
        *("a.json", "b.json", "c.json", "d.json", "nowhere.json")
    ]
    assert "gap_seconds: 0" in lines[1] and "-1" in lines[2]


def test_rejects_incomplete_costs(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text('{"goodput": {"blocked_seconds": -1}}')
    with pytest.raises(CostsError, match="blocked_seconds -1, durable_seconds None"):
        read_costs(path)
    path.write_text("{}")
    with pytest.raises(CostsError, match="no section 'goodput'"):
        read_costs(path)


def test_report_and_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.json").write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1] * 100 + [0] * 10}))
    output = tmp_path / "out" / "goodput.json"
    assert main([str(tmp_path / "good.json"), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert (
        "(minimum 0.95): met" in printed
        and "Limitations: the traces cover" in printed
        and "assumed, not measured" in printed
    )
    row, busy = json.loads(output.read_text())["traces"]
    assert row["shares"]["notice"] > row["shares"]["hourly sync"]
    assert busy["in_place"] > busy["shares"]["notice"] + 0.05
    (tmp_path / "bad.json").write_text(json.dumps({"metadata": {"gap_seconds": 150}, "data": [0, 1] * 50}))
    assert main([str(tmp_path / "good.json"), str(tmp_path / "bad.json"), "--output", str(output)]) == 1
    assert "worst trace: bad.json" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere"), "--output", str(output)]) == 2
