"""A fleet that replaces an interrupted instance twice does not keep the second replacement."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS, Backend
from tests.localcloud.compute.controlled_run import ControlledRun, Plan

pytestmark = pytest.mark.usefixtures("fleet_roles", "empty_cloud")

ZONES = ("eu-west-1a", "eu-west-1b")


@pytest.mark.parametrize("backend", BACK_ENDS)
def test_an_instance_that_ends_before_the_next_step_leaves_no_excess(cloud: Any, backend: Backend) -> None:
    run = ControlledRun(cloud, Plan(deadline_hours=None, boot_seconds=120.0), ZONES, backend)
    for zone in ZONES:
        run.set_zone(zone, is_available=True, usd_per_hour=0.03)

    for _ in range(4):
        run.tick(run.step)
    first = {one.id for one in run.instances()}
    assert len(first) == run.plan.nodes
    run.notice(min(first))
    run.tick(run.step)  # raises the target capacity
    run.tick(run.step)  # EC2 reclaims the instance before this step, and a maintained fleet replaces it a second time
    counts = []
    for _ in range(4):
        run.tick(run.step)
        counts.append(len(run.instances()))
    assert counts[-1] == run.plan.nodes, counts
    assert len(first & {one.id for one in run.instances()}) == 1, "the other node continues"
    assert run.lines[-1]["phase"] == "running"
    run.end()
    for _ in range(2):
        run.tick(run.step)
    assert not run.instances()
