"""Changes a gang in place at random, with real supervisors and trainers, and compares the run with resumed runs.

    python -m benchmarks.chaos.in_place --changes 30 --seed 1

Every few steps, the ranks compare all parameters bit by bit; a difference ends the run. The report counts the changes
that were made in place, and those that fell back to the checkpoint, with the causes that the nodes reported. A
violation is a missing step, a step that was reported twice, a commit by a superseded generation, a run that failed or
hung, or a bit that differs from a resumed run. `python -m benchmarks.chaos.reforming` interrupts trainers more often,
because it needs no supervisors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.boot.__main__ import BUCKET, STEPS_WITHOUT_END, _account, stale_commits
from benchmarks.boot.gang import Gang, TooSlowError, events
from benchmarks.boot.network import Network, has_namespaces
from benchmarks.boot.reforms import members_of, records_of
from benchmarks.chaos.__main__ import make_dataset
from benchmarks.chaos.campaign import CONFIG
from benchmarks.chaos.nodes import Node
from benchmarks.chaos.reforming.resumed import Resumed, history
from benchmarks.chaos.supervised import DEPLOYMENT, RUN
from bootstrap.documents.object_keys import run_prefix
from stacks.config.heartbeat import SuperviseConfig
from training.checkpoint.storage.s3 import S3Backend

NODES = 3
COMPARED_EVERY_STEPS = 7
STALL_SECONDS = 2.0
"""Duration of a stall that must not remove a machine from the gang."""
SPLIT_SECONDS = 12.0
"""Longest time for which a node is disconnected. After about 3 s, the others continue without it."""


CHANGES: dict[str, Any] = {
    **CONFIG,
    "steps": STEPS_WITHOUT_END,
    "parallel": {"reform": True},
    "recovery": {"parameter_check_interval_steps": COMPARED_EVERY_STEPS},
}


class Changes:
    """Random disturbances of a gang.

    Args:
        gang: the gang.
        choice: source of the choices.
    """

    def __init__(self, gang: Gang, choice: random.Random) -> None:
        self._gang, self._choice = gang, choice

    def kill_ranks(self, node: Node) -> None:
        """Kill a node's ranks, whatever they are doing."""
        time.sleep(self._choice.random())
        for pid in node.trainers():
            os.kill(pid, signal.SIGKILL)

    def kill_two_in_a_row(self, node: Node) -> None:
        """Kill the ranks of a second node while the other nodes change to the next generation."""
        self.kill_ranks(node)
        others = [each for each in self._gang.nodes if each is not node]
        self.kill_ranks(self._choice.choice(others))

    def notice(self, node: Node) -> None:
        """Send a node a notice, and launch its replacement."""
        node.metadata.give_notice(20.0)
        self._gang.wait("the exit of the node", lambda: node.process.poll() is not None)
        self._gang.forget_exited()
        self._gang.launch()

    def cut_off(self, node: Node) -> None:
        """Lose a machine, and launch another."""
        self._gang.lose(node)
        self._gang.launch()

    def kill_supervisor(self, node: Node) -> None:
        """Kill a supervisor, which the node restarts."""
        node.kill_supervisor()
        node.start()

    def stall(self, node: Node) -> None:
        """Freeze all processes of a node for a short time."""
        thaw = self._gang.freeze(node)
        time.sleep(STALL_SECONDS)
        thaw()

    def kill_while_changing(self, node: Node) -> None:
        """Kill a node's ranks, and those of another node as soon as its ranks change."""
        others = [each for each in self._gang.nodes if each is not node]
        second = self._choice.choice(others)
        before = _handovers(second)
        for pid in node.trainers():
            os.kill(pid, signal.SIGKILL)
        self._gang.wait("a handover", lambda: _handovers(second) > before)
        self.kill_ranks(second)

    def split(self, node: Node) -> None:
        """Disconnect a node, which lives on, and connect it again after a time that it may or may not survive."""
        reconnect = self._gang.disconnect(node)
        time.sleep(self._choice.random() * SPLIT_SECONDS)
        reconnect()

    @property
    def all(self) -> list[Callable[[Node], None]]:
        """The disturbances."""
        splits = [self.split] if has_namespaces() else []
        return [
            *splits,
            self.kill_while_changing,
            self.kill_ranks,
            self.kill_two_in_a_row,
            self.notice,
            self.cut_off,
            self.kill_supervisor,
            self.stall,
        ]


def main() -> int:
    """Run the changes, print the report as JSON, and return 1 if there was a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=30, help="number of disturbances")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no disturbance after this time")
    parser.add_argument("--seed", type=int, default=1, help="seed of all choices")
    options = parser.parse_args()
    choice = random.Random(options.seed)  # noqa: S311 (not a secret)
    made: Counter[str] = Counter()
    violations: list[str] = []
    ends = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="in-place-") as folder, ExitStack() as stack:
        network = Network() if has_namespaces() else None
        if network:
            stack.callback(network.close)
        account = stack.enter_context(_account(network.address if network else "127.0.0.1"))
        dataset = make_dataset(Path(folder))
        gang = stack.enter_context(_open(Path(folder), account, dataset, network))
        changes = Changes(gang, choice)
        try:
            for number in range(options.changes):
                if time.monotonic() > ends:
                    break
                _settle(gang)
                change = choice.choice(changes.all)
                made[change.__name__] += 1
                change(choice.choice(gang.nodes))
                _progress(gang)
                _show(f"{number + 1}/{options.changes} {change.__name__}: step {_newest(gang)}")
            _settle(gang)
        except TooSlowError as error:
            violations.append(f"hangs: {str(error)[-6000:]}")
        gang.close()
        if account.outcome() is not None:
            violations.append(f"the run has ended: {account.outcome()}")
        backend = S3Backend(BUCKET, f"{run_prefix(DEPLOYMENT, RUN)}/checkpoints", account.s3)
        violations += stale_commits(backend)
        records = [each for kind in ("start", "reform", "step") for each in records_of(gang, kind)]
        segments = history(sorted(records, key=lambda each: float(each["unix_seconds"])), violations)
        resumed = Resumed(Path(folder) / "resumed", dataset, CHANGES, _show)
        stack.callback(resumed.close)
        resumed.compare(segments, backend, violations)
        report = {**_costs(gang), "segments": len(segments), "steps_equal_to_resumed_runs": resumed.compared}
    sys.stdout.write(json.dumps({"changes": made, **report, "violations": violations}, indent=2) + "\n")
    return int(bool(violations))


@contextmanager
def _open(folder: Path, account: Any, dataset: Path, network: Network | None) -> Iterator[Gang]:
    code = account.fill(dataset)
    gang = Gang(folder, account, code, dataset.name, NODES, CHANGES, SuperviseConfig().model_dump(), network, 1)
    try:
        for _ in range(NODES):
            gang.launch()
        yield gang
    finally:
        gang.close()


def _newest(gang: Gang) -> int:
    return max((int(each["step"]) for each in records_of(gang, "step")), default=0)


def _progress(gang: Gang) -> None:
    before = _newest(gang)
    gang.wait("another step", lambda: _newest(gang) > before)


def _settle(gang: Gang) -> None:
    """Wait for the complete gang."""
    gang.wait(f"a gang of {NODES}", lambda: members_of(gang) == NODES)
    _progress(gang)


def _handovers(node: Node) -> int:
    """Return a number that grows with each handover to a node's trainers."""
    return max((path.stat().st_mtime_ns for path in node.root.glob("runs/*/gen-*/generation.json")), default=0)


def _costs(gang: Gang) -> dict[str, Any]:
    """Return the number of changes in place and of fall-backs, with their causes as the nodes have reported them."""
    starts, reforms = records_of(gang, "start"), records_of(gang, "reform")
    causes: Counter[str] = Counter()
    for node in gang.everyone:
        for event in events(node, "generation_ended"):
            if event["outcome"] not in ("stopped", "finished"):
                causes[f"{event['outcome']}: {re.sub(r'[0-9][0-9a-f.:]*', 'N', event['message'])[:160]}"] += 1
    seconds = sorted(float(each["seconds"]) for each in reforms)
    return {
        "steps": len({int(each["step"]) for each in records_of(gang, "step")}),
        "in_place": len(reforms),
        "fallbacks": len(starts) - 1,
        "nodes_that_started_new_trainers": causes,
        "median_seconds": seconds[len(seconds) // 2] if seconds else None,
    }


def _show(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
