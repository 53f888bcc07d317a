"""The run controller's decisions, case by case, and as a simulated fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stacks.functions.run_controller.policy import (
    LONGEST_WAIT_SECONDS,
    Decision,
    Detach,
    Group,
    Instance,
    Memory,
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
EMPTY = Group(desired=0, maximum=2, subnets=("subnet-a",), template_version="1", instances=())
KNOWN = Memory(run_digest="d1", template_version="1")
RUNNING = replace(KNOWN, phase="running")


def instances(*names: str, state: str = "InService") -> tuple[Instance, ...]:
    return tuple(Instance(name, state) for name in names)


def situation(**changes: object) -> Situation:
    base = Situation(
        now_unix_seconds=10_000.0,
        settings=SETTINGS,
        run=RUN,
        outcome=None,
        group=EMPTY,
        heard_from=frozenset(),
        interrupted=frozenset(),
        memory=Memory(),
    )
    return replace(base, **changes)


FULL = replace(EMPTY, desired=2, instances=instances("i-1", "i-2"))
ONE_OF_TWO = replace(EMPTY, desired=2, instances=instances("i-1"))


@pytest.mark.parametrize(
    ("why", "seen", "actions", "phase"),
    [
        ("a new run starts", situation(), (Resize(2),), "running"),
        ("never more than the group holds", situation(run=replace(RUN, nodes=5)), (Resize(2),), "running"),
        ("no run document: nothing runs", situation(run=None, group=FULL), (Resize(0),), "idle"),
        ("no run document and nothing running", situation(run=None), (), "idle"),
        ("a whole gang is left alone", situation(group=FULL, memory=RUNNING), (), "running"),
        (
            "finished: to zero",
            situation(group=FULL, memory=RUNNING, outcome=Outcome("d1", "finished")),
            (Resize(0),),
            "ended",
        ),
        ("finished already", situation(memory=RUNNING, outcome=Outcome("d1", "finished")), (), "ended"),
        (
            "bad configuration: to zero",
            situation(group=FULL, memory=RUNNING, outcome=Outcome("d1", "bad_configuration")),
            (Resize(0),),
            "ended",
        ),
        ("failed for good", situation(group=FULL, outcome=Outcome("d1", "failed")), (Resize(0),), "ended"),
        (
            "the outcome of an older document does not count",
            situation(outcome=Outcome("d0", "finished"), memory=replace(KNOWN, run_digest="d0", phase="ended")),
            (Resize(2),),
            "running",
        ),
        (
            "interrupted: replaced at the notice",
            situation(group=FULL, memory=RUNNING, interrupted=frozenset({"i-2"})),
            (Detach("i-2"),),
            "running",
        ),
        (
            "the same notice again: it is no longer a member",
            situation(group=ONE_OF_TWO, memory=RUNNING, interrupted=frozenset({"i-2"})),
            (),
            "running",
        ),
        (
            "a notice for another fleet's machine",
            situation(group=FULL, memory=RUNNING, interrupted=frozenset({"i-99"})),
            (),
            "running",
        ),
        (
            "a notice after the end: nobody is replaced",
            situation(group=FULL, interrupted=frozenset({"i-1"}), outcome=Outcome("d1", "finished")),
            (Resize(0),),
            "ended",
        ),
        (
            "a machine that is still coming cannot be detached",
            situation(
                group=replace(FULL, instances=instances("i-1", "i-2", state="Pending")),
                memory=RUNNING,
                interrupted=frozenset({"i-1"}),
            ),
            (),
            "running",
        ),
        (
            "a partial gang within the time-out",
            situation(group=ONE_OF_TWO, memory=replace(RUNNING, since_unix_seconds=9_401.0)),
            (),
            "running",
        ),
        (
            "a partial gang past the time-out is given up",
            situation(group=ONE_OF_TWO, memory=replace(RUNNING, since_unix_seconds=9_400.0)),
            (Resize(0),),
            "giving_up",
        ),
        (
            "a gang of min_nodes is enough",
            situation(
                run=replace(RUN, min_nodes=1), group=ONE_OF_TWO, memory=replace(RUNNING, since_unix_seconds=9_000.0)
            ),
            (),
            "running",
        ),
        (
            "giving up waits for the last node",
            situation(
                group=replace(EMPTY, instances=instances("i-1", state="Terminating:Wait")),
                memory=replace(KNOWN, phase="giving_up", attempt=1),
            ),
            (),
            "giving_up",
        ),
        (
            "giving up insists on zero",
            situation(group=ONE_OF_TWO, memory=replace(KNOWN, phase="giving_up", attempt=1)),
            (Resize(0),),
            "giving_up",
        ),
        (
            "at zero the next attempt goes to the next subnet",
            situation(memory=replace(KNOWN, phase="giving_up", attempt=1)),
            (Resize(2, ("subnet-b",)),),
            "running",
        ),
        (
            "after a round that cost money for nothing it waits",
            situation(
                group=replace(EMPTY, subnets=("subnet-b",)),
                memory=replace(KNOWN, phase="giving_up", attempt=2, paid_in_vain=True),
            ),
            (),
            "waiting",
        ),
        (
            "a round without a single machine cost nothing: the next one starts at once",
            situation(group=replace(EMPTY, subnets=("subnet-b",)), memory=replace(KNOWN, phase="giving_up", attempt=2)),
            (Resize(2, ("subnet-a",)),),
            "running",
        ),
        (
            "without a machine, and with no other place to try, it asks on",
            situation(
                settings=replace(SETTINGS, one_subnet_at_a_time=False),
                group=replace(EMPTY, desired=2, subnets=SETTINGS.subnets),
                memory=replace(RUNNING, since_unix_seconds=1.0),
            ),
            (),
            "running",
        ),
        (
            "it still waits",
            situation(memory=replace(KNOWN, phase="waiting", attempt=2, retry_unix_seconds=10_001.0)),
            (),
            "waiting",
        ),
        (
            "the wait is over: the next subnet, round again",
            situation(
                group=replace(EMPTY, subnets=("subnet-b",)),
                memory=replace(KNOWN, phase="waiting", attempt=2, retry_unix_seconds=10_000.0),
            ),
            (Resize(2, ("subnet-a",)),),
            "running",
        ),
        (
            "spread over all subnets there is no next one: it waits at once",
            situation(
                settings=replace(SETTINGS, one_subnet_at_a_time=False),
                memory=replace(KNOWN, phase="giving_up", attempt=1, paid_in_vain=True),
            ),
            (),
            "waiting",
        ),
        (
            "a group that is in a subnet no longer wanted starts in the first",
            situation(group=replace(EMPTY, subnets=("subnet-z",))),
            (Resize(2, ("subnet-a",)),),
            "running",
        ),
        (
            "a run keeps the subnet where the group is",
            situation(group=replace(EMPTY, subnets=("subnet-b",))),
            (Resize(2),),
            "running",
        ),
        (
            "more nodes wanted",
            situation(run=replace(RUN, digest="d2", nodes=4), group=replace(FULL, maximum=4), memory=RUNNING),
            (Resize(4),),
            "running",
        ),
        (
            "somebody else sized the fleet",
            situation(group=replace(FULL, desired=1, instances=instances("i-1")), memory=RUNNING),
            (Resize(2),),
            "running",
        ),
        (
            "protected after boot failures",
            situation(
                group=replace(FULL, instances=instances("i-7", "i-8")),
                memory=replace(RUNNING, boot_failures=1, booting=("i-5", "i-6")),
            ),
            (Resize(0),),
            "protected",
        ),
        (
            "protected stays so",
            situation(memory=replace(KNOWN, phase="protected", boot_failures=3)),
            (),
            "protected",
        ),
        (
            "a changed run document lifts the protection",
            situation(run=replace(RUN, digest="d2"), memory=replace(KNOWN, phase="protected", boot_failures=3)),
            (Resize(2),),
            "running",
        ),
        (
            "so does a changed launch template",
            situation(
                group=replace(EMPTY, template_version="2"), memory=replace(KNOWN, phase="protected", boot_failures=3)
            ),
            (Resize(2),),
            "running",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_decision(why: str, seen: Situation, actions: tuple[object, ...], phase: str) -> None:
    decision = decide(seen)
    assert decision.actions == actions, why
    assert decision.memory.phase == phase, why


def test_gang_clock_starts_when_a_member_is_lost_and_stops_when_it_is_replaced() -> None:
    lost = decide(situation(group=FULL, memory=RUNNING, interrupted=frozenset({"i-2"}))).memory
    assert lost.since_unix_seconds == 10_000.0
    later = decide(situation(group=ONE_OF_TWO, memory=lost, now_unix_seconds=10_050.0)).memory
    assert later.since_unix_seconds == 10_000.0, "a look in between does not start the clock again"
    whole = replace(FULL, instances=instances("i-1", "i-3"))
    assert decide(situation(group=whole, memory=later, now_unix_seconds=10_090.0)).memory.since_unix_seconds is None


def test_the_patience_of_a_gang_begins_with_its_first_machine() -> None:
    spread = replace(SETTINGS, one_subnet_at_a_time=False)
    group = replace(EMPTY, desired=2, subnets=SETTINGS.subnets)
    memory = decide(situation(settings=spread, group=group, memory=replace(RUNNING, since_unix_seconds=1.0))).memory
    one = replace(group, instances=instances("i-1"))
    assert decide(situation(settings=spread, group=one, memory=memory)).memory.phase == "running"


def test_a_new_round_forgets_what_the_last_one_cost() -> None:
    memory = replace(KNOWN, phase="waiting", attempt=2, paid_in_vain=True, retry_unix_seconds=10_000.0)
    assert not decide(situation(memory=memory)).memory.paid_in_vain
    assert decide(situation(memory=replace(KNOWN, phase="giving_up", attempt=1, paid_in_vain=True))).memory.paid_in_vain


def test_wait_doubles_with_each_round_up_to_half_an_hour() -> None:
    waits = []
    for attempt in (2, 4, 6, 8, 40):
        known = replace(KNOWN, phase="giving_up", attempt=attempt, paid_in_vain=True)
        memory = decide(situation(memory=known)).memory
        assert memory.retry_unix_seconds is not None
        waits.append(memory.retry_unix_seconds - 10_000.0)
    assert waits == [600, 1200, LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS]


class TestBootFailures:
    def watch(self, *steps: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]) -> Memory:
        """Play looks at the fleet: (members, those heard from, those interrupted)."""
        memory = RUNNING
        for members, heard, interrupted in steps:
            group = replace(EMPTY, desired=2, instances=instances(*members))
            memory = decide(
                situation(group=group, memory=memory, heard_from=frozenset(heard), interrupted=frozenset(interrupted))
            ).memory
        return memory

    def test_a_node_that_ends_without_a_heartbeat_is_one(self) -> None:
        assert self.watch((("i-1", "i-2"), (), ()), (("i-1",), (), ())).boot_failures == 1

    def test_a_node_that_was_heard_from_is_none(self) -> None:
        assert self.watch((("i-1", "i-2"), (), ()), (("i-1",), ("i-2",), ())).boot_failures == 0

    def test_a_node_that_aws_took_is_none(self) -> None:
        steps = ((("i-1", "i-2"), (), ()), (("i-1", "i-2"), (), ("i-2",)), (("i-1",), (), ()))
        assert self.watch(*steps).boot_failures == 0

    def test_a_whole_gang_clears_the_count(self) -> None:
        steps = ((("i-1", "i-2"), (), ()), (("i-1", "i-3"), (), ()), (("i-1", "i-3"), ("i-1", "i-3"), ()))
        assert self.watch(*steps).boot_failures == 0

    def test_the_count_is_kept_while_the_gang_is_not_whole(self) -> None:
        steps = ((("i-1", "i-2"), (), ()), (("i-3", "i-4"), ("i-3",), ()))
        assert self.watch(*steps).boot_failures == 2

    def test_shrinking_the_gang_is_none(self) -> None:
        four = replace(EMPTY, desired=4, maximum=4, instances=instances("i-1", "i-2", "i-3", "i-4"))
        memory = decide(situation(group=four, memory=replace(RUNNING, booting=("i-1", "i-2", "i-3", "i-4")))).memory
        assert decide(situation(group=replace(four, desired=2, instances=instances("i-1", "i-2")), memory=memory))
        assert memory.boot_failures == 0
        assert memory.booting == ()


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
def test_looking_again_at_once_settles_and_repeats_nothing(
    desired: int,
    states: list[str],
    heard: set[int],
    interrupted: set[int],
    phase: str,
    attempt: int,
    since: float | None,
    outcome: Outcome | None,
) -> None:
    """Events come twice: what was decided and carried out is not decided again at the same instant."""
    members = tuple(Instance(f"i-{number}", state) for number, state in enumerate(states))
    seen = situation(
        group=replace(EMPTY, desired=desired, maximum=3, instances=members),
        heard_from=frozenset(f"i-{number}" for number in heard),
        interrupted=frozenset(f"i-{number}" for number in interrupted),
        memory=replace(KNOWN, phase=phase, attempt=attempt, since_unix_seconds=since),
        outcome=outcome,
    )
    done: list[object] = []
    for _ in range(3):
        decision = decide(seen)
        assert not set(decision.actions) & set(done)
        done += decision.actions
        group = seen.group
        for action in decision.actions:
            if isinstance(action, Resize):
                assert action.subnets is None or not group.instances, "subnets change at zero nodes only"
                group = replace(group, desired=action.desired, subnets=action.subnets or group.subnets)
            else:
                left = tuple(item for item in group.instances if item.instance_id != action.instance_id)
                group = replace(group, instances=left)
        seen = replace(seen, group=group, memory=decision.memory)
    assert decide(seen).actions == ()


def test_a_fleet_without_capacity_goes_round_the_zones_and_burns_nothing_meanwhile() -> None:
    """Only subnet-b ever has machines: the run gets there, and there is never a node outside an attempt."""
    group, memory, now, tried = EMPTY, Memory(), 0.0, []
    for _ in range(400):
        members = instances("i-1", "i-2") if group.desired == 2 and group.subnets == ("subnet-b",) else ()
        members = members or (instances("i-9") if group.desired else ())
        group = replace(group, instances=members)
        decision = decide(situation(now_unix_seconds=now, group=group, memory=memory))
        memory = decision.memory
        for action in decision.actions:
            assert isinstance(action, Resize)
            group = replace(group, desired=action.desired, subnets=action.subnets or group.subnets)
            if action.desired:
                tried.append(group.subnets[0])
        now += 60.0
    assert tried == ["subnet-a", "subnet-b"]
    assert memory.phase == "running"
    assert memory.since_unix_seconds is None


class TestFleetsThatCannotDetach:
    """An EC2 Fleet or Spot Fleet: one more is asked for at the notice, and one less when it is there."""

    SETTLED = replace(FULL, surplus=0)

    def look(self, group: Group, memory: Memory = RUNNING, *interrupted: str) -> Decision:
        return decide(situation(group=group, memory=memory, interrupted=frozenset(interrupted)))

    def test_a_notice_to_the_end(self) -> None:
        noticed = self.look(self.SETTLED, RUNNING, "i-1")
        assert noticed.actions == (Surplus(2, 1),)
        assert noticed.memory.excused == ("i-1",)
        # The clock comes by before the replacement does: nothing is asked twice, nothing taken back.
        waiting = self.look(replace(self.SETTLED, surplus=1), noticed.memory)
        assert waiting.actions == ()
        arrived = replace(FULL, instances=instances("i-1", "i-2", "i-3"), surplus=1)
        settled = self.look(arrived, waiting.memory)
        assert settled.actions == (Surplus(2, 0),)
        gone = replace(FULL, instances=instances("i-2", "i-3"), surplus=0)
        after = self.look(gone, settled.memory)
        assert after.actions == ()
        assert after.memory.boot_failures == 0
        assert after.memory.excused == ()

    def test_a_machine_that_goes_before_its_replacement_comes(self) -> None:
        noticed = self.look(self.SETTLED, RUNNING, "i-1")
        gone = replace(FULL, instances=instances("i-2"), surplus=1)
        assert self.look(gone, noticed.memory).actions == (Surplus(2, 0),)

    def test_both_are_taken(self) -> None:
        assert self.look(self.SETTLED, RUNNING, "i-1", "i-2").actions == (Surplus(2, 2),)

    def test_a_notice_to_somebody_elses_machine(self) -> None:
        assert self.look(self.SETTLED, RUNNING, "i-9").actions == ()

    def test_the_end_takes_replacements_too(self) -> None:
        ended = situation(group=replace(FULL, surplus=1), memory=RUNNING, outcome=Outcome("d1", "finished"))
        assert decide(ended).actions == (Resize(0),)
