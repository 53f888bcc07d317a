"""The status derived from an observation, and its text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bootstrap.documents import RunDocument
from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.supervise.membership.records import Checkpoint, RunStatus
from stacks.capacity.catalogue import catalogue
from stacks.functions.run_controller.deadlines.goals import Outlook
from stacks.functions.run_controller.policy import ControllerState
from trainstack.account import Deployment, Node, Observation
from trainstack.observe.status import duration, lines, status_of

NOW = 1_800_000_000.0
RUN = RunDocument.from_json(
    {
        "schema_version": SCHEMA_VERSION,
        "deployment": "demo",
        "run": "first",
        "nodes": 2,
        "min_nodes": 2,
        "processes_per_node": 1,
        "code": {"bucket": "b", "key": "k", "sha256": "0" * 64},
        "dataset": "d",
        "training": {},
    }
)
REPORT = RunStatus(
    run="first",
    run_digest=RUN.digest(),
    generation=3,
    members=("i-2", "i-1"),
    step=250,
    steps_total=1000,
    loss=2.5,
    validation_loss=None,
    tokens_per_second=12345.6,
    step_seconds=2.0,
    mfu=0.41,
    checkpoint=Checkpoint(200, NOW - 90),
    unix_seconds=NOW - 4,
)
NODES = tuple(Node(f"i-{n}", "g6.xlarge", "us-east-1a", "spot", "running", NOW - 3600 * n) for n in (2, 1))
SEEN = Observation(
    deployment=Deployment("demo", "/trainstack/demo", "/trainstack/demo/run", "checkpoints", "control", "datasets"),
    run=RUN,
    controller=ControllerState(run_digest=RUN.digest(), phase="running", reason="2 of 2 nodes in service"),
    controller_unix_seconds=NOW - 30,
    status=REPORT,
    nodes=NODES,
    problems=(),
)


def status(**changes: Any) -> Any:
    return status_of(replace(SEEN, **changes), catalogue(), "us-east-1", NOW)


def test_ranked_zones_are_shown() -> None:
    choice = "by cost: us-east-1b 0.4000 USD/h"
    found = status(controller=replace(SEEN.controller, choice=choice))
    assert found.zones == choice
    assert [line for line in lines(found) if line.startswith("zones")] == [f"zones               {choice}"]
    assert not any(line.startswith("zones") for line in lines(status()))


def test_deadline_is_shown_with_its_numbers() -> None:
    outlook = Outlook(NOW + 7200.0, 1.5, 2.0, on_demand_nodes=1, reason="safety net", expected_usd=12.0)
    found = status(controller=replace(SEEN.controller, outlook=outlook))
    (line,) = [line for line in lines(found) if line.startswith("deadline")]
    assert "(2.0 h left) for 1.5 h of training and restarts of 0.20 h; 1 of 2 nodes are On-Demand: safety net" in line
    assert line.endswith("about 12.00 USD until the end of the run")
    assert found.to_json()["outlook"]["work_hours"] == 1.5
    assert not any("deadline" in note for note in found.notes)
    late = status(controller=replace(SEEN.controller, outlook=replace(outlook, verdict="late", work_hours=3.0)))
    assert any("will probably miss its deadline" in note for note in late.notes)
    assert not any(line.startswith("deadline") for line in lines(status()))


def test_a_training_run_has_progress_ranks_and_price() -> None:
    found = status()
    assert (found.phase, found.step, found.progress, found.seconds_left) == ("running", 250, 0.25, 1500.0)
    assert [(node.instance_id, node.rank) for node in found.nodes] == [("i-2", 0), ("i-1", 1)]
    price = catalogue().usd_per_hour("us-east-1", "g6.xlarge", "spot")
    assert price is not None and found.usd_per_hour == pytest.approx(2 * price, abs=1e-4)
    text = "\n".join(lines(found))
    for part in ("first of demo: running", "250 of 1,000 (25.0%), about 25 min left", "step 200, saved 1 min 30 s ago"):
        assert part in text
    assert "rank 0   i-2  g6.xlarge spot us-east-1a  running, 2 h 0 min" in text
    assert found.notes == ()


def test_a_report_of_another_run_document_is_not_shown_as_progress() -> None:
    found = status(status=replace(REPORT, run_digest="other"))
    assert found.step is None and found.checkpoint_step is None
    assert "earlier run document" in found.notes[0]


def test_a_controller_state_of_another_run_document_is_not_shown() -> None:
    assert status(controller=ControllerState(run_digest="other", phase="ended")).phase == "starting"


def test_an_old_report_of_a_running_fleet_is_noted() -> None:
    found = status(status=replace(REPORT, unix_seconds=NOW - 500))
    assert found.notes == ("the first member's report is 500 s old: no generation is training",)


def test_an_unknown_price_hides_the_sum() -> None:
    found = status(nodes=(replace(NODES[0], instance_type="x9.large"),))
    assert found.usd_per_hour is None
    assert "USD" not in "\n".join(lines(found))


def test_without_a_run_document_the_deployment_is_idle() -> None:
    found = status(run=None, controller=None, status=None, nodes=(), problems=("/p: the parameter does not exist",))
    assert (found.phase, found.reason, found.usd_per_hour) == ("idle", "no run document", 0)
    assert "the parameter does not exist" in lines(found)[-1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (1500, "25 min"), (7260, "2 h 1 min"), (200_000, "2 d 7 h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
