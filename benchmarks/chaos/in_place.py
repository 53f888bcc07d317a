"""Changes a gang in place at random, with real supervisors and trainers, and checks that neither a step nor a bit is
lost.

    python -m benchmarks.chaos.in_place --changes 30 --seed 1

Every few steps, the ranks compare all parameters bit by bit; a difference ends the run. The report counts the changes
that were made in place, those that fell back to the checkpoint, and the violations: a missing step, a step that was
computed twice without a fall-back, a commit by a superseded generation, a run that failed or hung.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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
from benchmarks.boot.gang import Gang, TooSlowError
from benchmarks.boot.network import Network, has_namespaces
from benchmarks.boot.reforms import members_of, records_of
from benchmarks.chaos.__main__ import make_dataset
from benchmarks.chaos.campaign import CONFIG
from benchmarks.chaos.nodes import Node
from benchmarks.chaos.supervised import DEPLOYMENT, RUN
from bootstrap.documents.object_keys import run_prefix
from stacks.config.heartbeat import SuperviseConfig
from training.checkpoint.storage.s3 import S3Backend

NODES = 3
COMPARED_EVERY_STEPS = 7
STALL_SECONDS = 2.0
"""Duration of a stall that must not remove a machine from the gang."""


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

    @property
    def all(self) -> list[Callable[[Node], None]]:
        """The disturbances."""
        return [
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
    parser.add_argument("--seed", type=int, default=1, help="seed of all choices")
    options = parser.parse_args()
    choice = random.Random(options.seed)  # noqa: S311 (not a secret)
    made: Counter[str] = Counter()
    violations: list[str] = []
    with tempfile.TemporaryDirectory(prefix="in-place-") as folder, ExitStack() as stack:
        network = Network() if has_namespaces() else None
        if network:
            stack.callback(network.close)
        account = stack.enter_context(_account(network.address if network else "127.0.0.1"))
        gang = stack.enter_context(_open(Path(folder), account, network))
        changes = Changes(gang, choice)
        try:
            for number in range(options.changes):
                _settle(gang)
                change = choice.choice(changes.all)
                made[change.__name__] += 1
                change(choice.choice(gang.nodes))
                _progress(gang)
                sys.stderr.write(f"{number + 1}/{options.changes} {change.__name__}: step {_newest(gang)}\n")
            _settle(gang)
        except TooSlowError as error:
            violations.append(f"hangs: {str(error)[-6000:]}")
        report = _judge(gang)
        if account.outcome() is not None:
            violations.append(f"the run has ended: {account.outcome()}")
        violations += report.pop("violations")
        violations += stale_commits(S3Backend(BUCKET, f"{run_prefix(DEPLOYMENT, RUN)}/checkpoints", account.s3))
    sys.stdout.write(json.dumps({"changes": made, **report, "violations": violations}, indent=2) + "\n")
    return int(bool(violations))


@contextmanager
def _open(folder: Path, account: Any, network: Network | None) -> Iterator[Gang]:
    dataset = make_dataset(folder)
    config = {
        **CONFIG,
        "steps": STEPS_WITHOUT_END,
        "parallel": {"reform": True},
        "recovery": {"parameter_check_interval_steps": COMPARED_EVERY_STEPS},
    }
    code = account.fill(dataset)
    gang = Gang(folder, account, code, dataset.name, NODES, config, SuperviseConfig().model_dump(), network, 1)
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


def _judge(gang: Gang) -> dict[str, Any]:
    steps = Counter(int(each["step"]) for each in records_of(gang, "step"))
    starts, reforms = records_of(gang, "start"), records_of(gang, "reform")
    fallbacks = len(starts) - 1
    repeated = sum(count - 1 for count in steps.values())
    missing = sorted(set(range(1, max(steps, default=0) + 1)) - steps.keys())
    violations = [f"steps without a record: {missing[:10]}"] if missing and not fallbacks else []
    if repeated and not fallbacks:
        violations.append(f"{repeated} steps were computed twice, without a fall-back")
    seconds = sorted(float(each["seconds"]) for each in reforms)
    return {
        "steps": len(steps),
        "in_place": len(reforms),
        "fallbacks": fallbacks,
        "steps_repeated": repeated,
        "median_seconds": seconds[len(seconds) // 2] if seconds else None,
        "violations": violations,
    }


if __name__ == "__main__":
    sys.exit(main())
