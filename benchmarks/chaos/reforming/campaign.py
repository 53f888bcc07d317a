"""Random interruptions of ranks that change in place."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from benchmarks.chaos.reforming.ranks import Nodes, Rank

MAX_RANKS = 4
PLACES = 20
"""Ranks that exist at once, including those that are about to end."""
FORM_SECONDS = 60.0
"""Limit for a generation to be formed or to fail. The trainers' own limit for a change is 10 s."""
ENDS_SECONDS = 60.0
"""Limit for a rank that has been cut off to end after it is connected again."""
START_SECONDS = 180.0
CHANGE_SECONDS = 1.5
"""Time after a handover within which a second rank is killed: changes take 0.3 to 2 s, by load."""
POLL_SECONDS = 0.01
Result = Literal["in place", "fell back"]


class HangError(RuntimeError):
    """A condition was not met in time; the message includes the logs."""


class Campaign:
    """A run that is interrupted again and again.

    Args:
        nodes: starts ranks and hands generations to them.
        choice: source of all choices.
        has_network: True if a node can be cut off the network.

    Attributes:
        made: number of interruptions by kind.
        phases: number of kills by the phase in which they hit a rank.
        results: number of changes by result.
        fallbacks: number of fall-backs by cause.
        violations: one line per violation.
    """

    def __init__(self, nodes: Nodes, choice: random.Random, *, has_network: bool) -> None:
        self._nodes, self._choice = nodes, choice
        self._members: list[Rank] = []
        self._pending: list[Rank] = []
        self._generation = 0
        self._away: list[Rank] = []
        self._dead: list[Rank] = []
        self.made: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.results: Counter[Result] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.violations: list[str] = []
        # with the smallest and the largest gang in which each is possible
        self._kinds: list[tuple[Callable[[], None], int, int]] = [
            (self.leave, 2, MAX_RANKS),
            (self.join, 1, MAX_RANKS - 1),
            (self.join, 1, 2),
            (self.kill, 2, MAX_RANKS),
            (self.kill_while_changing, 3, MAX_RANKS),
            (self.leave_and_kill, 3, MAX_RANKS),
            (self.kill_a_rank_that_joins, 1, MAX_RANKS - 1),
            (self.kill_during_a_join, 2, MAX_RANKS - 1),
            (self.freeze, 2, MAX_RANKS),
            (self.stall, 2, MAX_RANKS),
        ]
        if has_network:
            self._kinds.append((self.cut_off, 2, MAX_RANKS))

    def begin(self) -> None:
        """Start a generation from the newest checkpoint."""
        for each in [*self._members, *self._pending, *self._away, *self._dead]:
            self._nodes.retire(each)
        self._away, self._dead, self._pending = [], [], []
        self._generation += 1
        started = len(self._nodes.records("start"))
        self._members = self._nodes.start(self._generation, range(MAX_RANKS), MAX_RANKS, None, self._nodes.free_port())
        self._wait(
            "the first step", lambda: self._failed() or len(self._nodes.records("start")) > started, START_SECONDS
        )
        if failed := self._failed():
            raise HangError(f"a generation could not start: {failed.ending()}\n{failed.log()[-3000:]}")
        self._progress()

    def interrupt(self) -> str:
        """Interrupt the run once, wait until it trains again, and return what happened."""
        size = len(self._members)
        kind = self._choice.choice([each for each, least, most in self._kinds if least <= size <= most])
        before = Counter(self.results)
        kind()
        self.made[kind.__name__] += 1
        self._progress()
        self._settle(may_wait=len(self._away) > PLACES // 2)
        return f"{kind.__name__}: {dict(self.results - before)}, {size} ranks before, {len(self._members)} after"

    def end(self) -> None:
        """Wait for ranks that were cut off, and for a last checkpoint."""
        self._settle(may_wait=True)
        saved = len(self._nodes.records("checkpoint"))
        self._wait("a checkpoint", lambda: len(self._nodes.records("checkpoint")) > saved, FORM_SECONDS)
        for each in self._members:
            each.end()

    def leave(self) -> None:
        """Let a rank leave as planned."""
        victim = self._victim()
        self._change([each for each in self._members if each is not victim], planned=True, leaves=[victim])

    def join(self) -> None:
        """Let a rank join."""
        self._change(self._with_newcomer(), planned=True)

    def kill(self) -> None:
        """Kill a rank, and hand over shortly afterwards."""
        victim = self._kill(self._victim())
        time.sleep(self._choice.random() * 0.3)
        self._change([each for each in self._members if each is not victim], planned=False)

    def kill_while_changing(self) -> None:
        """Kill a rank, and another one while the survivors change."""
        first = self._kill(self._victim())
        self._hand_over([each for each in self._members if each is not first], planned=False)
        self._delay()
        second = self._kill(self._choice.choice(self._pending))
        self._replace_pending([second])

    def leave_and_kill(self) -> None:
        """Let a rank leave as planned, and kill another one during the change."""
        leaver = self._victim()
        self._hand_over([each for each in self._members if each is not leaver], planned=True, leaves=[leaver])
        self._delay()
        second = self._kill(self._choice.choice(self._pending))
        self._replace_pending([second])

    def kill_a_rank_that_joins(self) -> None:
        """Kill a rank while it joins: before it is ready, while it takes the state, or while it primes."""
        members = self._with_newcomer()
        joiner = members[-1]
        self._hand_over(members, planned=True)
        self._await_phase(joiner)
        self._kill(joiner)
        self._replace_pending([joiner])

    def kill_during_a_join(self) -> None:
        """Kill a rank that holds the state while another one joins."""
        members = self._with_newcomer()
        joiner = members[-1]
        self._hand_over(members, planned=True)
        self._await_phase(joiner)
        self._replace_pending([self._kill(self._choice.choice(members[:-1]))])

    def freeze(self) -> None:
        """Freeze a rank until the others have continued, and let it wake."""
        victim = self._victim()
        victim.send(signal.SIGSTOP)
        self._away.append(victim)
        self._change([each for each in self._members if each is not victim], planned=False)
        victim.send(signal.SIGCONT)

    def stall(self) -> None:
        """Freeze a rank for a short time, which must change nothing."""
        victim = self._victim()
        victim.send(signal.SIGSTOP)
        time.sleep(self._choice.random() * 2)
        victim.send(signal.SIGCONT)

    def cut_off(self) -> None:
        """Cut a rank off the network until the others have continued. It still reaches the checkpoint store."""
        victim = self._victim()
        self._nodes.disconnect(victim)
        self._away.append(victim)
        time.sleep(self._choice.random() * 0.5)
        self._change([each for each in self._members if each is not victim], planned=False)
        self._nodes.reconnect(victim)

    def _victim(self) -> Rank:
        return self._choice.choice(self._members)

    def _delay(self) -> None:
        time.sleep(self._choice.random() * CHANGE_SECONDS)

    def _await_phase(self, joiner: Rank) -> None:
        """Wait for a random moment in a join: while the rank builds its model, or after the change has begun."""
        if self._choice.random() < 0.3:
            time.sleep(self._choice.random() * 2)
            return
        self._wait("the join", lambda: joiner.phase() != "building" or not joiner.is_alive, FORM_SECONDS)
        time.sleep(self._choice.random() * CHANGE_SECONDS / 3)

    def _kill(self, rank: Rank) -> Rank:
        rank.send(signal.SIGKILL)
        rank.process.join()
        self.phases[rank.phase()] += 1
        return rank

    def _with_newcomer(self) -> list[Rank]:
        members = self._members
        port = self._nodes.free_port(members[0].place)
        self._port = port
        (joiner,) = self._nodes.start(self._generation + 1, [len(members)], len(members) + 1, members[0], port)
        return [*members, joiner]

    def _hand_over(
        self, members: list[Rank], *, planned: bool, leaves: Sequence[Rank] = (), joins: Sequence[Rank] = ()
    ) -> None:
        """Hand over the next generation, as the supervisors would after an election."""
        self._generation += 1
        self._pending = members
        port = self._port if joins else self._nodes.free_port(members[0].place)
        to = [*joins, *(each for each in members if each not in joins), *leaves]
        survivors = len(members) - len(joins)
        self._nodes.hand_over(self._generation, members, port, survivors=survivors, planned=planned, to=to)

    def _change(self, members: list[Rank], *, planned: bool, leaves: Sequence[Rank] = ()) -> None:
        joins = [each for each in members if each not in self._members]
        self._hand_over(members, planned=planned, leaves=leaves, joins=joins)
        self._await_formed()

    def _replace_pending(self, lost: list[Rank]) -> None:
        """Hand over a generation without the ranks that were lost while the last one was being formed, and wait."""
        time.sleep(self._choice.random() * 0.3)
        holders = [each for each in self._pending if each in self._members or each.formed() == self._generation]
        survivors = [each for each in holders if each not in lost]
        # A rank that joins holds no state: without it, the change is as planned as before.
        planned = len(survivors) == len(holders)
        if not planned:
            for each in self._pending:
                if each not in holders:
                    each.send(signal.SIGKILL)  # its supervisor ends it: the next generation does not include it
        leaves = [each for each in self._members if each not in self._pending and each.is_alive and planned]
        self._dead += [each for each in self._pending if each not in survivors]
        self._hand_over(survivors, planned=planned, leaves=leaves)
        self._await_formed()

    def _failed(self) -> Rank | None:
        return next((each for each in self._members if not each.is_alive), None)

    def _await_formed(self) -> None:
        """Wait until the generation is formed, or one of its ranks has given up; then fall back."""

        def is_formed() -> bool:
            return all(each.formed() == self._generation for each in self._pending)

        def given_up() -> list[Rank]:
            return [each for each in self._pending if not each.is_alive]

        self._wait("the next generation", lambda: is_formed() or given_up(), FORM_SECONDS)
        if not is_formed():
            self.results["fell back"] += 1
            self.fallbacks[given_up()[0].ending()] += 1
            self.begin()
            return
        self.results["in place"] += 1
        for each in self._members:
            if each not in self._pending and each not in self._away and each not in self._dead:
                (self._away if each.is_alive else self._dead).append(each)
        self._members, self._pending = self._pending, []

    def _settle(self, *, may_wait: bool) -> None:
        """Check that the ranks that have left or were away end by themselves."""
        for each in self._dead:
            self._nodes.retire(each)
        self._dead = []
        for each in list(self._away):
            if may_wait or not each.is_alive:
                self._wait("the end of a rank that was away", lambda each=each: not each.is_alive, ENDS_SECONDS)  # type: ignore[misc]
                if each.process.exitcode not in (74, 75, 76):
                    self.violations.append(f"a rank that was away ended with {each.ending()}")
                self._away.remove(each)
                self._nodes.retire(each)

    def _progress(self) -> None:
        """Wait for some more steps."""
        wanted = self._newest() + self._choice.randint(3, 25)
        self._wait("more steps", lambda: self._newest() >= wanted or self._failed(), FORM_SECONDS)
        failed = self._failed()
        if failed is not None:
            self.violations.append(f"a rank ended without an interruption: {failed.ending()}: {failed.log()[-1500:]}")
            self.begin()

    def _newest(self) -> int:
        return max((int(each["step"]) for rank in self._members for each in rank.records("step")), default=0)

    def _wait(self, what: str, condition: Callable[[], object], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"== {each.name}: {each.phase()}\n{each.log()[-2500:]}" for each in self._members)
                raise HangError(f"{what}: not within {seconds:.0f} s\n{logs}")
            time.sleep(POLL_SECONDS)
