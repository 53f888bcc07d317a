"""A rank in a process forked from a server that has already imported torch, so that a start takes milliseconds."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.process.distributed import Gang

PRELOADED = ["training.loop.trainer", "training.config", "torch._dynamo", "training.checkpoint.storage.s3"]


def run_rank(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process, like `python -m training`."""
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # set by the import of torch._dynamo, which a trainer imports later
    os.environ.update(environment)
    descriptor = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.chdir(Path(stderr).parent)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    from training.__main__ import main

    sys.exit(main(arguments))


def run_rank_behind(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process whose eighth step fails although the step's last collective has completed."""

    def fail(gate: Callable[[], None]) -> None:
        gate()
        raise RuntimeError("gloo: an error injected after the last collective of a step")

    _replace_eighth_gate(fail)
    run_rank(arguments, environment, stderr)


def _replace_eighth_gate(replacement: Callable[[Callable[[], None]], None]) -> None:
    """Call ``replacement`` with the last collective of the eighth step, in place of the collective."""
    from training.process.distributed import Gang

    original, steps = Gang.pass_gate, itertools.count(1)

    def pass_gate(gang: Gang, numbers: Any) -> None:
        gate = functools.partial(original, gang, numbers)
        if next(steps) == 8:
            replacement(gate)
        else:
            gate()

    setattr(Gang, "pass_gate", pass_gate)  # noqa: B010


def run_rank_that_cannot_prime(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process whose first change fails after it has got its new rank."""
    from training.loop.reforming import state

    def prime(self: state.StateInMemory) -> None:
        raise RuntimeError("gloo: an error injected while priming")

    setattr(state.StateInMemory, "prime", prime)  # noqa: B010
    run_rank(arguments, environment, stderr)


def run_rank_that_hangs(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process that hangs in its first change, in a call without a limit."""
    import threading

    from training.loop.reforming import state

    def claim(self: state.StateInMemory) -> None:
        threading.Event().wait()

    setattr(state.StateInMemory, "claim", claim)  # noqa: B010
    run_rank(arguments, environment, stderr)


def run_rank_that_does_not_notice(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process whose main thread waits in its eighth step for something other than the gang."""
    import threading

    from training.loop.reforming import change

    def hang(_: Callable[[], None]) -> None:
        print("an endless wait", file=sys.stderr)
        threading.Event().wait()

    _replace_eighth_gate(hang)
    change.LIMIT_SECONDS = 2.0
    run_rank(arguments, environment, stderr)


def run_impatient_rank(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process with a short limit, which reports that it still waits after three times this limit."""
    import threading

    from training.loop.reforming import change

    change.LIMIT_SECONDS = 2.0
    await_handover = change.Reforming.await_handover

    def await_and_report(self: change.Reforming, failure: str) -> Any:
        line = "has waited longer than its limit"
        threading.Timer(3 * change.LIMIT_SECONDS, lambda: print(line, file=sys.stderr)).start()
        return await_handover(self, failure)

    setattr(change.Reforming, "await_handover", await_and_report)  # noqa: B010
    run_rank(arguments, environment, stderr)


def run_rank_that_dies(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process that dies when it connects to the ranks that it joins."""
    from training.process.distributed import Gang

    def assemble(*values: Any) -> None:
        os._exit(9)

    setattr(Gang, "assemble", assemble)  # noqa: B010
    run_rank(arguments, environment, stderr)


def run_rank_that_dies_priming(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process that primes when it starts, and dies while the ranks that it joins prime."""
    from training.process.replication import Replica

    prime, calls = Replica.prime, itertools.count()

    def prime_once(*values: Any) -> Any:
        if next(calls):
            os._exit(9)
        return prime(*values)

    setattr(Replica, "prime", prime_once)  # noqa: B010
    run_rank(arguments, environment, stderr)


RANKS = {
    "usual": run_rank,
    "behind": run_rank_behind,
    "cannot prime": run_rank_that_cannot_prime,
    "hangs": run_rank_that_hangs,
    "does not notice": run_rank_that_does_not_notice,
    "impatient": run_impatient_rank,
    "dies": run_rank_that_dies,
    "dies priming": run_rank_that_dies_priming,
}
