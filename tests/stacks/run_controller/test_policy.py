"""The run controller's decisions, case by case, and as a simulated fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.policy import (
    LONGEST_WAIT_SECONDS,
    STOP_SECONDS,
    CompleteTermination,
    ControllerState,
    Decision,
    Detach,
    FleetState,
    Instance,
    LaunchFailure,
    LiftOutcome,
    Outcome,
    Resize,
    Run,
    Settings,
    Situation,
    Surplus,
    decide,
)

SETTINGS = Settings(("subnet-a", "subnet-b"), one_subnet_at_a_time=True, gang_timeout_seconds=600, boot_failure_limit=3)
RUN = Run("run-1", "d1", nodes=2, min_nodes=2)
EMPTY = FleetState(desired=0, maximum=2, subnets=("subnet-a",), template="1", instances=())
KNOWN = ControllerState(run_digest="d1", template="1")
RUNNING = replace(KNOWN, phase="running")


def instances(*names: str, state: str = "InService") -> tuple[Instance, ...]:
    return tuple(Instance(name, state) for name in names)


def situation(**changes: object) -> Situation:
    base = Situation(
        now_unix_seconds=10_000.0,
        settings=SETTINGS,
        run=RUN,
        outcome=None,
        fleet=EMPTY,
        heard_from=frozenset(),
        interrupted=frozenset(),
        state=ControllerState(),
    )
    return replace(base, **changes)


FULL = replace(EMPTY, desired=2, instances=instances("i-1", "i-2"))
ONE_OF_TWO = replace(EMPTY, desired=2, instances=instances("i-1"))


@pytest.mark.parametrize(
    ("why", "seen", "actions", "phase"),
    [
        ("a new run starts", situation(), (Resize(2),), "running"),
        ("never above the maximum of the fleet", situation(run=replace(RUN, nodes=5)), (Resize(2),), "running"),
        ("no run document: scale to zero", situation(run=None, fleet=FULL), (Resize(0),), "idle"),
        ("no run document at zero nodes", situation(run=None), (), "idle"),
        ("a complete gang needs no action", situation(fleet=FULL, state=RUNNING), (), "running"),
        (
            "finished: scale to zero",
            situation(fleet=FULL, state=RUNNING, outcome=Outcome("d1", "finished")),
            (Resize(0),),
            "ended",
        ),
        ("finished already", situation(state=RUNNING, outcome=Outcome("d1", "finished")), (), "ended"),
        (
            "bad configuration: scale to zero",
            situation(fleet=FULL, state=RUNNING, outcome=Outcome("d1", "bad_configuration")),
            (Resize(0),),
            "ended",
        ),
        ("failed permanently", situation(fleet=FULL, outcome=Outcome("d1", "failed")), (Resize(0),), "ended"),
        (
            "the outcome of an older run document is ignored",
            situation(outcome=Outcome("d0", "finished"), state=replace(KNOWN, run_digest="d0", phase="ended")),
            (Resize(2),),
            "running",
        ),
        (
            "interrupted: replaced at the notice",
            situation(fleet=FULL, state=RUNNING, interrupted=frozenset({"i-2"})),
            (Detach("i-2"),),
            "running",
        ),
        (
            "the same notice again: the instance is already detached",
            situation(fleet=ONE_OF_TWO, state=RUNNING, interrupted=frozenset({"i-2"})),
            (),
            "running",
        ),
        (
            "a notice for an instance of another fleet",
            situation(fleet=FULL, state=RUNNING, interrupted=frozenset({"i-99"})),
            (),
            "running",
        ),
        (
            "a notice after the end: no replacement",
            situation(fleet=FULL, interrupted=frozenset({"i-1"}), outcome=Outcome("d1", "finished")),
            (Resize(0),),
            "ended",
        ),
        (
            "a pending instance cannot be detached",
            situation(
                fleet=replace(FULL, instances=instances("i-1", "i-2", state="Pending")),
                state=RUNNING,
                interrupted=frozenset({"i-1"}),
            ),
            (),
            "running",
        ),
        (
            "a partial gang within the timeout",
            situation(fleet=ONE_OF_TWO, state=replace(RUNNING, since_unix_seconds=9_401.0)),
            (),
            "running",
        ),
        (
            "a partial gang past the timeout is abandoned",
            situation(fleet=ONE_OF_TWO, state=replace(RUNNING, since_unix_seconds=9_400.0)),
            (Resize(0),),
            "giving_up",
        ),
        (
            "a gang of min_nodes is enough",
            situation(
                run=replace(RUN, min_nodes=1), fleet=ONE_OF_TWO, state=replace(RUNNING, since_unix_seconds=9_000.0)
            ),
            (),
            "running",
        ),
        (
            "giving up waits until the last node terminates",
            situation(
                fleet=replace(EMPTY, instances=instances("i-1", state="Terminating:Wait")),
                state=replace(KNOWN, phase="giving_up", attempt=1),
            ),
            (),
            "giving_up",
        ),
        (
            "giving up scales to zero again",
            situation(fleet=ONE_OF_TWO, state=replace(KNOWN, phase="giving_up", attempt=1)),
            (Resize(0),),
            "giving_up",
        ),
        (
            "at zero nodes the next attempt uses the next subnet",
            situation(state=replace(KNOWN, phase="giving_up", attempt=1)),
            (Resize(2, ("subnet-b",)),),
            "running",
        ),
        (
            "after a round that had instances it waits",
            situation(
                fleet=replace(EMPTY, subnets=("subnet-b",)),
                state=replace(KNOWN, phase="giving_up", attempt=2, had_instances=True),
            ),
            (),
            "waiting",
        ),
        (
            "a round without instances cost nothing: the next one starts at once",
            situation(fleet=replace(EMPTY, subnets=("subnet-b",)), state=replace(KNOWN, phase="giving_up", attempt=2)),
            (Resize(2, ("subnet-a",)),),
            "running",
        ),
        (
            "without instances and without another subnet it keeps requesting",
            situation(
                settings=replace(SETTINGS, one_subnet_at_a_time=False),
                fleet=replace(EMPTY, desired=2, subnets=SETTINGS.subnets),
                state=replace(RUNNING, since_unix_seconds=1.0),
            ),
            (),
            "running",
        ),
        (
            "it waits until the retry time",
            situation(state=replace(KNOWN, phase="waiting", attempt=2, retry_unix_seconds=10_001.0)),
            (),
            "waiting",
        ),
        (
            "after the wait the next subnet is the first one again",
            situation(
                fleet=replace(EMPTY, subnets=("subnet-b",)),
                state=replace(KNOWN, phase="waiting", attempt=2, retry_unix_seconds=10_000.0),
            ),
            (Resize(2, ("subnet-a",)),),
            "running",
        ),
        (
            "a fleet in all subnets has no next one: it waits at once",
            situation(
                settings=replace(SETTINGS, one_subnet_at_a_time=False),
                state=replace(KNOWN, phase="giving_up", attempt=1, had_instances=True),
            ),
            (),
            "waiting",
        ),
        (
            "a fleet in a subnet that is no longer a candidate starts in the first",
            situation(fleet=replace(EMPTY, subnets=("subnet-z",))),
            (Resize(2, ("subnet-a",)),),
            "running",
        ),
        (
            "a run keeps the fleet's current subnet",
            situation(fleet=replace(EMPTY, subnets=("subnet-b",))),
            (Resize(2),),
            "running",
        ),
        (
            "more nodes requested",
            situation(run=replace(RUN, digest="d2", nodes=4), fleet=replace(FULL, maximum=4), state=RUNNING),
            (Resize(4),),
            "running",
        ),
        (
            "the fleet was resized manually",
            situation(fleet=replace(FULL, desired=1, instances=instances("i-1")), state=RUNNING),
            (Resize(2),),
            "running",
        ),
        (
            "protected after boot failures",
            situation(
                fleet=replace(FULL, instances=instances("i-7", "i-8")),
                state=replace(RUNNING, boot_failures=1, booting=("i-5", "i-6")),
            ),
            (Resize(0),),
            "protected",
        ),
        (
            "protection persists",
            situation(state=replace(KNOWN, phase="protected", boot_failures=3)),
            (),
            "protected",
        ),
        (
            "a changed run document lifts the protection",
            situation(run=replace(RUN, digest="d2"), state=replace(KNOWN, phase="protected", boot_failures=3)),
            (Resize(2),),
            "running",
        ),
        (
            "a changed launch template lifts the protection",
            situation(fleet=replace(EMPTY, template="2"), state=replace(KNOWN, phase="protected", boot_failures=3)),
            (Resize(2),),
            "running",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_decision(why: str, seen: Situation, actions: tuple[object, ...], phase: str) -> None:
    decision = decide(seen)
    assert decision.actions == actions, why
    assert decision.state.phase == phase, why


def test_gang_timeout_runs_from_a_loss_to_its_replacement() -> None:
    lost = decide(situation(fleet=FULL, state=RUNNING, interrupted=frozenset({"i-2"}))).state
    assert lost.since_unix_seconds == 10_000.0
    later = decide(situation(fleet=ONE_OF_TWO, state=lost, now_unix_seconds=10_050.0)).state
    assert later.since_unix_seconds == 10_000.0, "an invocation in between does not restart the timeout"
    complete = replace(FULL, instances=instances("i-1", "i-3"))
    assert decide(situation(fleet=complete, state=later, now_unix_seconds=10_090.0)).state.since_unix_seconds is None


def test_gang_patience_starts_with_the_first_instance() -> None:
    spread = replace(SETTINGS, one_subnet_at_a_time=False)
    fleet = replace(EMPTY, desired=2, subnets=SETTINGS.subnets)
    state = decide(situation(settings=spread, fleet=fleet, state=replace(RUNNING, since_unix_seconds=1.0))).state
    one = replace(fleet, instances=instances("i-1"))
    assert decide(situation(settings=spread, fleet=one, state=state)).state.phase == "running"


def test_new_round_resets_had_instances() -> None:
    state = replace(KNOWN, phase="waiting", attempt=2, had_instances=True, retry_unix_seconds=10_000.0)
    assert not decide(situation(state=state)).state.had_instances
    assert decide(situation(state=replace(KNOWN, phase="giving_up", attempt=1, had_instances=True))).state.had_instances


def test_wait_doubles_per_round_up_to_half_an_hour() -> None:
    waits = []
    for attempt in (2, 4, 6, 8, 40):
        known = replace(KNOWN, phase="giving_up", attempt=attempt, had_instances=True)
        state = decide(situation(state=known)).state
        assert state.retry_unix_seconds is not None
        waits.append(state.retry_unix_seconds - 10_000.0)
    assert waits == [600, 1200, LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS]


class TestBootFailures:
    def watch(self, *steps: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]) -> ControllerState:
        """Run one decision per step: (instances, instances with a heartbeat, interrupted instances)."""
        state = RUNNING
        for members, heard, interrupted in steps:
            fleet = replace(EMPTY, desired=2, instances=instances(*members))
            state = decide(
                situation(fleet=fleet, state=state, heard_from=frozenset(heard), interrupted=frozenset(interrupted))
            ).state
        return state

    def test_node_without_a_heartbeat_counts(self) -> None:
        assert self.watch((("i-1", "i-2"), (), ()), (("i-1",), (), ())).boot_failures == 1

    def test_node_with_a_heartbeat_does_not_count(self) -> None:
        assert self.watch((("i-1", "i-2"), (), ()), (("i-1",), ("i-2",), ())).boot_failures == 0

    def test_interrupted_node_does_not_count(self) -> None:
        steps = ((("i-1", "i-2"), (), ()), (("i-1", "i-2"), (), ("i-2",)), (("i-1",), (), ()))
        assert self.watch(*steps).boot_failures == 0

    def test_complete_gang_resets_the_count(self) -> None:
        steps = ((("i-1", "i-2"), (), ()), (("i-1", "i-3"), (), ()), (("i-1", "i-3"), ("i-1", "i-3"), ()))
        assert self.watch(*steps).boot_failures == 0

    def test_incomplete_gang_keeps_the_count(self) -> None:
        steps = ((("i-1", "i-2"), (), ()), (("i-3", "i-4"), ("i-3",), ()))
        assert self.watch(*steps).boot_failures == 2

    def test_shrinking_the_gang_does_not_count(self) -> None:
        four = replace(EMPTY, desired=4, maximum=4, instances=instances("i-1", "i-2", "i-3", "i-4"))
        state = decide(situation(fleet=four, state=replace(RUNNING, booting=("i-1", "i-2", "i-3", "i-4")))).state
        assert decide(situation(fleet=replace(four, desired=2, instances=instances("i-1", "i-2")), state=state))
        assert state.boot_failures == 0
        assert state.booting == ()


@settings(max_examples=200, deadline=None)
@given(
    desired=st.integers(0, 3),
    states=st.lists(st.sampled_from(["Pending", "InService", "Terminating:Wait", "Detaching"]), max_size=4),
    heard=st.sets(st.integers(0, 3)),
    interrupted=st.sets(st.integers(0, 3)),
    phase=st.sampled_from(["idle", "running", "giving_up", "waiting", "ended", "protected"]),
    attempt=st.integers(0, 9),
    since=st.none() | st.floats(0, 10_000),
    outcome=st.none() | st.sampled_from([Outcome("d1", "finished"), Outcome("d0", "failed")]),
)
def test_repeated_decisions_settle_and_repeat_no_action(
    desired: int,
    states: list[str],
    heard: set[int],
    interrupted: set[int],
    phase: str,
    attempt: int,
    since: float | None,
    outcome: Outcome | None,
) -> None:
    """Events can be duplicates: an action that was applied is not decided again at the same time."""
    members = tuple(Instance(f"i-{number}", state) for number, state in enumerate(states))
    seen = situation(
        fleet=replace(EMPTY, desired=desired, maximum=3, instances=members),
        heard_from=frozenset(f"i-{number}" for number in heard),
        interrupted=frozenset(f"i-{number}" for number in interrupted),
        state=replace(KNOWN, phase=phase, attempt=attempt, since_unix_seconds=since),
        outcome=outcome,
    )
    done: list[object] = []
    for _ in range(3):
        decision = decide(seen)
        assert not set(decision.actions) & set(done)
        done += decision.actions
        fleet = seen.fleet
        for action in decision.actions:
            if isinstance(action, Resize):
                assert action.subnets is None or not fleet.instances, "subnets change at zero nodes only"
                fleet = replace(fleet, desired=action.desired, subnets=action.subnets or fleet.subnets)
            else:
                left = tuple(item for item in fleet.instances if item.instance_id != action.instance_id)
                fleet = replace(fleet, instances=left)
        seen = replace(seen, fleet=fleet, state=decision.state)
    assert decide(seen).actions == ()


def test_fleet_without_capacity_tries_the_zones_in_turn() -> None:
    """Only subnet-b has capacity: the run reaches it, and no node runs outside an attempt."""
    fleet, state, now, tried = EMPTY, ControllerState(), 0.0, []
    for _ in range(400):
        members = instances("i-1", "i-2") if fleet.desired == 2 and fleet.subnets == ("subnet-b",) else ()
        members = members or (instances("i-9") if fleet.desired else ())
        fleet = replace(fleet, instances=members)
        decision = decide(situation(now_unix_seconds=now, fleet=fleet, state=state))
        state = decision.state
        for action in decision.actions:
            assert isinstance(action, Resize)
            fleet = replace(fleet, desired=action.desired, subnets=action.subnets or fleet.subnets)
            if action.desired:
                tried.append(fleet.subnets[0])
        now += 60.0
    assert tried == ["subnet-a", "subnet-b"]
    assert state.phase == "running"
    assert state.since_unix_seconds is None


class TestCurrentSubnet:
    def test_the_next_attempt_follows_the_latest_one_and_not_the_template(self) -> None:
        """A deploy without nodes has written the template's first subnet back."""
        state = replace(KNOWN, phase="giving_up", attempt=1, subnets=("subnet-b",))
        decision = decide(situation(state=state))
        assert (decision.actions, decision.state.subnets) == ((Resize(2),), ("subnet-a",))

    def test_a_new_run_starts_where_the_last_one_had_capacity(self) -> None:
        state = replace(KNOWN, run_digest="d0", phase="ended", subnets=("subnet-b",))
        fleet = replace(EMPTY, subnets=())  # groups for each subnet have no current one
        assert decide(situation(fleet=fleet, state=state)).actions == (Resize(2, ("subnet-b",)),)

    def test_a_maintained_fleet_that_a_deploy_moved_returns_to_its_nodes(self) -> None:
        """CloudFormation writes all properties of a Spot Fleet request with an update, including the first subnet."""
        fleet = replace(FULL, surplus=0)
        state = replace(RUNNING, subnets=("subnet-b",))
        assert decide(situation(fleet=fleet, state=state)).actions == (Resize(2, ("subnet-b",)),)
        there = replace(fleet, subnets=("subnet-b",))
        assert decide(situation(fleet=there, state=state)).actions == ()

    def test_a_group_is_never_moved(self) -> None:
        assert decide(situation(fleet=FULL, state=replace(RUNNING, subnets=("subnet-b",)))).actions == ()


def test_hooks_of_terminated_instances_are_completed_in_every_phase() -> None:
    held = replace(EMPTY, instances=instances("i-1", state="Terminating:Wait"), held_after_termination=("i-1",))
    for state in (KNOWN, replace(KNOWN, phase="giving_up", attempt=1), PROTECTED):
        assert decide(situation(fleet=held, state=state)).actions[:1] == (CompleteTermination("i-1"),)
    assert decide(situation(run=None, fleet=held)).actions == (CompleteTermination("i-1"),)


class TestFleetsThatCannotDetach:
    """EC2 Fleet and Spot Fleet: the target rises by one at the notice and falls again with the replacement."""

    SETTLED = replace(FULL, surplus=0)

    def look(self, fleet: FleetState, state: ControllerState = RUNNING, *interrupted: str) -> Decision:
        return decide(situation(fleet=fleet, state=state, interrupted=frozenset(interrupted)))

    def test_replacement_from_notice_to_end(self) -> None:
        noticed = self.look(self.SETTLED, RUNNING, "i-1")
        assert noticed.actions == (Surplus(2, 1),)
        assert noticed.state.excused == ("i-1",)
        # A scheduled invocation before the replacement is active changes nothing.
        waiting = self.look(replace(self.SETTLED, surplus=1), noticed.state)
        assert waiting.actions == ()
        arrived = replace(FULL, instances=instances("i-1", "i-2", "i-3"), surplus=1)
        settled = self.look(arrived, waiting.state)
        assert settled.actions == (Surplus(2, 0),)
        gone = replace(FULL, instances=instances("i-2", "i-3"), surplus=0)
        after = self.look(gone, settled.state)
        assert after.actions == ()
        assert after.state.boot_failures == 0
        assert after.state.excused == ()

    @pytest.mark.parametrize("left", [("i-2",), ("i-2", "i-3"), ("i-2", "i-3", "i-4")])
    def test_instance_terminates_before_the_surplus_is_removed(self, left: tuple[str, ...]) -> None:
        """The fleet may have replaced it a second time. A resize terminates what exceeds the target."""
        noticed = self.look(self.SETTLED, RUNNING, "i-1")
        gone = replace(FULL, instances=instances(*left), surplus=1)
        resized = self.look(gone, noticed.state)
        assert resized.actions == (Resize(2),)
        settled = self.look(replace(FULL, instances=instances("i-2", "i-3"), surplus=0), resized.state)
        assert settled.actions == () and settled.state.boot_failures == 0

    def test_two_interrupted_instances(self) -> None:
        assert self.look(self.SETTLED, RUNNING, "i-1", "i-2").actions == (Surplus(2, 2),)

    def test_notice_for_an_instance_of_another_fleet(self) -> None:
        assert self.look(self.SETTLED, RUNNING, "i-9").actions == ()

    def test_end_of_the_run_terminates_replacements_too(self) -> None:
        ended = situation(fleet=replace(FULL, surplus=1), state=RUNNING, outcome=Outcome("d1", "finished"))
        assert decide(ended).actions == (Resize(0),)


PROTECTED = replace(
    KNOWN, phase="protected", boot_failures=3, retry_unix_seconds=10_000.0, last_failure="gpus: 7 of 8 GPUs"
)


class TestProbes:
    def probing(self) -> ControllerState:
        decision = decide(situation(state=PROTECTED))
        assert decision.actions == (Resize(1),)
        assert (decision.state.phase, decision.state.probes) == ("probing", 1)
        return decision.state

    def look(self, state: ControllerState, now: float, *members: str, heard: str = "") -> Decision:
        fleet = replace(EMPTY, desired=1, instances=instances(*members))
        return decide(situation(now_unix_seconds=now, fleet=fleet, state=state, heard_from=frozenset(heard.split())))

    def test_probes_follow_after_15_minutes_1_hour_and_6_hours(self) -> None:
        state, now, waits = replace(RUNNING, boot_failures=3, last_failure="x"), 10_000.0, []
        for _ in range(3):
            protected = decide(situation(now_unix_seconds=now, state=state)).state
            assert protected.phase == "protected" and protected.retry_unix_seconds is not None
            waits.append(protected.retry_unix_seconds - now)
            now = protected.retry_unix_seconds
            assert decide(situation(now_unix_seconds=now - 1.0, state=protected)).actions == ()
            probing = decide(situation(now_unix_seconds=now, state=protected)).state
            booting = self.look(probing, now + 60.0, "i-7").state
            assert booting.phase == "probing"
            state = self.look(booting, now + 120.0).state
            now += 120.0
        assert waits == [900.0, 3600.0, 21_600.0]
        assert (state.phase, state.retry_unix_seconds) == ("protected", None)
        assert "no further probe" in state.reason
        assert decide(situation(now_unix_seconds=1e9, state=state)).actions == ()

    def test_a_failed_probe_scales_to_zero(self) -> None:
        booting = self.look(self.probing(), 10_060.0, "i-7").state
        failed = self.look(booting, 10_120.0)
        assert failed.actions == (Resize(0),)
        assert (failed.state.phase, failed.state.boot_failures) == ("protected", 3)
        assert failed.state.retry_unix_seconds == 10_120.0 + 3600.0

    def test_a_probe_that_boots_clears_the_protection(self) -> None:
        booting = self.look(self.probing(), 10_060.0, "i-7").state
        booted = self.look(booting, 10_120.0, "i-7", heard="i-7")
        assert booted.actions == (Resize(2),)
        assert booted.state.phase == "running"
        assert (booted.state.boot_failures, booted.state.probes, booted.state.last_failure) == (0, 0, "")

    def test_a_probe_without_capacity_keeps_requesting(self) -> None:
        state = self.probing()
        for now in (20_000.0, 90_000.0):
            waiting = self.look(state, now)
            assert (waiting.actions, waiting.state.phase) == ((), "probing")
            state = waiting.state

    def test_a_probe_that_hangs_fails_after_the_boot_timeout(self) -> None:
        booting = self.look(self.probing(), 10_060.0, "i-7").state
        assert self.look(booting, 10_060.0 + 1799.0, "i-7").state.phase == "probing"
        hung = self.look(booting, 10_060.0 + 1800.0, "i-7")
        assert hung.actions == (Resize(0),)
        assert "i-7 sent no heartbeat in 1800 s" in hung.state.reason

    def test_an_interrupted_probe_is_not_a_failure(self) -> None:
        fleet = replace(EMPTY, desired=1, instances=instances("i-7"))
        state = decide(situation(fleet=fleet, state=replace(self.probing(), booting=("i-7",)))).state
        noticed = decide(situation(fleet=fleet, state=state, interrupted=frozenset({"i-7"}))).state
        assert self.look(noticed, 10_300.0).state.phase == "probing"

    def test_the_dataset_is_checked_before_a_probe(self) -> None:
        decision = decide(situation(state=PROTECTED, missing_dataset="s3://d/dataset.json"))
        assert (decision.actions, decision.state.phase) == ((), "no_dataset")
        arrived = decide(situation(state=decision.state))
        assert (arrived.actions, arrived.state.boot_failures) == ((Resize(2),), 0)

    def test_a_template_of_another_deployment_with_the_same_version_number_lifts_it(self) -> None:
        state = replace(PROTECTED, template="lt-1:1")
        assert decide(situation(fleet=replace(EMPTY, template="lt-2:1"), state=state)).actions == (Resize(2),)


class TestDataset:
    MISSING = "s3://d/datasets/x/dataset.json"

    def test_the_reason_has_the_options_of_the_upload(self) -> None:
        reason = decide(situation(missing_dataset=self.MISSING)).state.reason
        assert f"the dataset {self.MISSING} does not exist" in reason
        assert "`python -m training tokenize`" in reason and "`--name x --output s3://d/datasets`" in reason

    def test_a_gang_with_its_own_copy_keeps_training(self) -> None:
        assert decide(situation(fleet=FULL, state=RUNNING, missing_dataset=self.MISSING)).actions == ()

    def test_a_new_run_without_its_dataset_does_not_keep_the_nodes_of_the_old_one(self) -> None:
        seen = situation(run=replace(RUN, digest="d2"), fleet=FULL, state=RUNNING, missing_dataset=self.MISSING)
        assert decide(seen).actions == (Resize(0),)
        assert decide(seen).state.phase == "no_dataset"

    def test_a_failed_boot_without_the_dataset_stops_at_once(self) -> None:
        state = replace(RUNNING, booting=("i-1", "i-2"))
        decision = decide(situation(fleet=ONE_OF_TWO, state=state, missing_dataset=self.MISSING))
        assert (decision.actions, decision.state.phase) == ((Resize(0),), "no_dataset")


STOP = "stopped by ada"


class TestStop:
    def test_a_group_terminates_its_nodes_through_their_hook(self) -> None:
        decision = decide(situation(fleet=FULL, state=RUNNING, stop=STOP))
        assert decision.actions == (Resize(0),)
        assert (decision.state.phase, decision.state.cause) == ("stopped", Cause.STOPPED)
        assert decision.state.explanation() == "stopped by ada; 2 nodes save and shut down"
        assert decide(situation(state=decision.state, stop=STOP)).state.explanation() == "stopped by ada"

    def test_nodes_of_a_maintained_fleet_save_before_they_are_terminated(self) -> None:
        fleet = replace(FULL, surplus=0)
        first = decide(situation(fleet=fleet, state=RUNNING, stop=STOP))
        assert first.actions == (Surplus(0, 0),)  # lowers the target without terminating nodes
        later = situation(fleet=replace(fleet, desired=0), state=first.state, stop=STOP)
        assert decide(later).actions == ()
        late = replace(later, now_unix_seconds=later.now_unix_seconds + STOP_SECONDS)
        assert decide(late).actions == (Resize(0),)
        assert decide(replace(late, fleet=replace(EMPTY, surplus=0))).actions == ()

    def test_a_resume_starts_the_fleet_in_the_first_round(self) -> None:
        state = replace(KNOWN, phase="stopped", attempt=5, had_instances=True)
        decision = decide(situation(state=state))
        assert (decision.actions, decision.state.attempt) == ((Resize(2),), 0)

    def test_a_resume_while_nodes_still_leave_keeps_the_target(self) -> None:
        state = replace(KNOWN, phase="stopped", since_unix_seconds=1.0)
        decision = decide(situation(fleet=replace(FULL, desired=0), state=state))
        assert decision.actions == (Resize(2),)

    def test_a_resume_does_not_lift_the_protection(self) -> None:
        protected = replace(KNOWN, phase="protected", boot_failures=3)
        stopped = decide(situation(state=protected, stop=STOP))
        resumed = decide(situation(state=stopped.state))
        assert (stopped.state.phase, resumed.state.phase, resumed.actions) == ("stopped", "protected", ())

    @pytest.mark.parametrize("outcome", ["finished", "failed"])
    def test_a_run_that_has_ended_stays_ended(self, outcome: str) -> None:
        assert decide(situation(outcome=Outcome("d1", outcome), stop=STOP)).state.phase == "ended"


class TestCauses:
    @pytest.mark.parametrize(
        ("outcome", "cause", "explanation"),
        [
            (Outcome("d1", "finished", "step 9"), Cause.FINISHED, "the run ended: finished"),
            (Outcome("d1", "failed", "rank 0: CUDA error"), Cause.TRAINING_FAILED, "training_failed: rank 0: CUDA"),
            (Outcome("d1", "bad_configuration", "steps: 0"), Cause.CONFIGURATION, "configuration: steps: 0"),
        ],
    )
    def test_an_ended_run(self, outcome: Outcome, cause: Cause, explanation: str) -> None:
        state = decide(situation(outcome=outcome)).state
        assert state.cause is cause and explanation in state.explanation()

    def look(self, fleet: FleetState, *messages: str, state: ControllerState = RUNNING) -> ControllerState:
        failures = tuple(LaunchFailure(message) for message in messages)
        return decide(situation(fleet=fleet, state=state, launch_failures=failures)).state

    def test_a_run_with_enough_nodes_has_no_cause(self) -> None:
        state = self.look(FULL, "Max spot instance count exceeded")
        assert (state.cause, state.problem) == ("", "")

    def test_too_few_nodes_without_a_message_are_unknown(self) -> None:
        assert self.look(replace(EMPTY, desired=2)).cause is Cause.UNKNOWN

    def test_the_message_stays_until_nodes_arrive(self) -> None:
        wanted = replace(EMPTY, desired=2)
        refused = self.look(wanted, "Max spot instance count exceeded")
        assert refused.cause is Cause.QUOTA
        later = self.look(wanted, state=refused)
        assert (later.cause, later.problem) == (Cause.QUOTA, "Max spot instance count exceeded")
        assert later.explanation() == refused.explanation()
        assert self.look(ONE_OF_TWO, state=later).cause is Cause.GANG_INCOMPLETE

    def test_an_instance_whose_launch_failed_is_not_a_boot_failure(self) -> None:
        state = replace(RUNNING, booting=("i-7",))
        failure = LaunchFailure("Termination Reason: Client.InternalError: Client error on launch", "i-7")
        seen = situation(fleet=replace(EMPTY, desired=2), state=state, launch_failures=(failure,))
        assert decide(seen).state.boot_failures == 0
        assert decide(seen).state.cause is Cause.PERMISSION

    def test_a_failed_boot_is_the_cause_until_the_gang_boots(self) -> None:
        state = self.look(ONE_OF_TWO, "no Spot capacity available", state=replace(RUNNING, booting=("i-1", "i-7")))
        assert state.cause is Cause.BOOT_FAILURE


class TestRetryOfAnEndedRun:
    @pytest.mark.parametrize("outcome", ["failed", "bad_configuration"])
    def test_a_retry_lifts_a_failed_outcome_and_starts_the_fleet(self, outcome: str) -> None:
        ended = replace(KNOWN, phase="ended", boot_failures=2)
        decision = decide(situation(outcome=Outcome("d1", outcome), state=ended, retry_requested=True))
        assert [type(action) for action in decision.actions] == [LiftOutcome, Resize]
        assert (decision.state.phase, decision.state.boot_failures) == ("running", 0)

    @pytest.mark.parametrize(
        ("outcome", "stop"),
        [(Outcome("d1", "finished"), ""), (Outcome("d1", "failed"), STOP)],
        ids=["finished", "stop"],
    )
    def test_a_retry_lifts_neither_a_finished_nor_a_stopped_run(self, outcome: Outcome, stop: str) -> None:
        decision = decide(situation(outcome=outcome, retry_requested=True, stop=stop))
        assert (decision.actions, decision.state.phase) == ((), "ended")

    def test_the_outcome_of_an_older_run_document_remains(self) -> None:
        decision = decide(situation(outcome=Outcome("d0", "failed"), retry_requested=True))
        assert LiftOutcome() not in decision.actions
