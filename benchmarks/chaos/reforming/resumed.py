"""Compares a run whose gang has changed in place with one that resumes from a checkpoint at every change.

The history of a run is a list of segments: steps that one set of ranks has computed. For each segment, new processes
resume from the checkpoint of the step before it, with as many ranks, in another store. All losses and gradient norms
must be equal, bit for bit, and so must all tensors of the run's last checkpoint.

A run that resumes with as many ranks as the checkpoint was saved by restores their random states. A change derives them
from seed, rank and step, even if the number of ranks is the same, so the resumed run then does that as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.contents import differences, newest_readable_step
from benchmarks.chaos.ranks import WarmParent
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.urls import open_backend

if TYPE_CHECKING:
    from torch import Tensor

    from training.checkpoint.manifest import Manifest
    from training.process.distributed import Gang

WAIT_SECONDS = 240.0
ATTEMPTS = 3


@dataclass
class Segment:
    """Steps that one set of ranks has computed.

    Attributes:
        begins: the step after which they begin.
        ranks: number of ranks.
        is_in_place: True if they continue from memory; False if they resume from a checkpoint.
        results: loss and gradient norm by step.
        reached: a later step that a checkpoint proves, although its report was lost with rank 0.
    """

    begins: int
    ranks: int
    is_in_place: bool
    results: dict[int, tuple[float, float]] = field(default_factory=dict)
    reached: int = 0

    @property
    def ends(self) -> int:
        """The last step that is known to have been computed."""
        return max(self.reached, max(self.results, default=self.begins))


def history(records: Sequence[Mapping[str, Any]], problems: list[str]) -> list[Segment]:
    """Return the segments of a run.

    Args:
        records: the records `start`, `reform` and `step`, in order of time.
        problems: gets a line for each step that is missing, or was computed twice without a fall-back.
    """
    segments: list[Segment] = []
    for record in records:
        kind, step = record["record"], int(record["step"])
        if kind in ("start", "reform"):
            if segments and step > segments[-1].ends and _owner(step, segments) is None:
                segments[-1].reached = step
            segments.append(Segment(step, int(record["world_size"]), kind == "reform"))
            continue
        # A report that was unread at a change is written after it.
        owner = next((each for each in reversed(segments) if each.begins < step), None)
        if owner is None:
            problems.append(f"step {step} precedes the first start")
        elif step in owner.results:
            problems.append(f"step {step} was reported twice by {owner.ranks} ranks")
        else:
            owner.results[step] = float(record["loss"]), float(record["gradient_norm"])
    for segment, successor in zip(segments, [*segments[1:], None], strict=True):
        end = successor.begins if successor is not None and successor.is_in_place else segment.ends
        missing = sorted(set(range(segment.begins + 1, end + 1)) - segment.results.keys())
        if missing:
            problems.append(f"steps without a report, by {segment.ranks} ranks: {missing[:10]}")
    return segments


class Resumed:
    """The resumed runs.

    Args:
        root: folder for run directories and stores.
        dataset: the dataset.
        config: the run's training config.
        show: called with a line of progress.
    """

    def __init__(self, root: Path, dataset: Path, config: Mapping[str, Any], show: Callable[[str], None]) -> None:
        self._root, self._config, self._show = root, config, show
        self._parent = WarmParent(root, dataset)
        self._stores: dict[int, Path] = {}
        self._generation = 0
        self.compared = 0

    def compare(self, segments: Sequence[Segment], checkpoints: Backend, problems: list[str]) -> None:
        """Add a line to `problems` for the first difference. Later segments would differ because of it."""
        last = newest_readable_step(checkpoints)
        for number, segment in enumerate(segments):
            found = self._compare_one(number, segments, last)
            if found:
                problems += found
                return
            self._show(f"compared segment {number + 1} of {len(segments)}: {segment.ranks} ranks, to {segment.ends}")
        if last is None or last not in self._stores:
            problems.append(f"the last checkpoint, of step {last}, has no counterpart")
        else:
            found = differences(checkpoints, open_backend(str(self._stores[last])))
            problems += [f"the checkpoint of step {last} differs: {found[:5]}"] if found else []

    def close(self) -> None:
        """End all processes."""
        self._parent.close()

    def _compare_one(self, number: int, segments: Sequence[Segment], last: int | None) -> list[str]:
        segment = segments[number]
        if segment.begins and segment.begins not in self._stores:
            return [f"no earlier record explains the step {segment.begins}, from which {segment.ranks} ranks continue"]
        wanted = {segment.ends, *_branches(number, segments)}
        if last is not None and _owner(last, segments) == number:
            wanted.add(last)
        begins, problems = segment.begins, []
        for step in sorted(wanted - {segment.begins}):
            derives = segment.is_in_place and begins == segment.begins
            results = self._run(begins, step, segment.ranks, derives=derives)
            for each in range(begins + 1, step + 1):
                if each in segment.results and results.get(each) != segment.results[each]:
                    mine, theirs = segment.results[each], results.get(each)
                    problems.append(
                        f"step {each} of {segment.ranks} ranks, which began after step {segment.begins} "
                        f"({'in place' if segment.is_in_place else 'resumed'}): {mine}, but resumed {theirs}"
                    )
                    break
                self.compared += 1
            begins = step
        return problems

    def _run(self, begins: int, step: int, ranks: int, *, derives: bool) -> dict[int, tuple[float, float]]:
        """Resume from the checkpoint of one step, save that of another, and return the results between them.

        With `derives`, the random states are derived even if as many ranks have saved the checkpoint.
        """
        for attempt in range(ATTEMPTS):
            self._generation += 1
            name = f"resumed-{self._generation}"
            store = self._root / f"{name}-store"
            if begins:
                shutil.copytree(self._stores[begins], store)
            config = {**self._config, "checkpoint": {"interval_steps": step}}
            prepare = derive_random_states if derives else None
            gang = self._parent.start(name, config, ranks, self._generation, str(store), prepare=prepare)
            found = gang.wait_until(lambda: any(r["step"] == step for r in gang.records("checkpoint")), WAIT_SECONDS)  # noqa: B023
            results = {r["step"]: (float(r["loss"]), float(r["gradient_norm"])) for r in gang.records("step")}
            gang.end()
            if not found:
                raise RuntimeError(f"a resumed run of {ranks} ranks did not reach step {step}: {gang.errors()[-3000:]}")
            if newest_readable_step(open_backend(str(store))) == step:
                self._stores[step] = store
                return results
            self._show(f"attempt {attempt + 1}: the resumed run has saved more than step {step}")
        raise RuntimeError(f"a resumed run could not be ended at step {step}")


def derive_random_states() -> None:
    """Make this process derive its random states when it resumes."""
    from training.checkpoint import resume
    from training.checkpoint.state.generators import seed_random_state

    def derive(gang: Gang, manifest: Manifest, random: dict[str, Tensor], seed: int) -> dict[str, Any]:
        seed_random_state(seed, gang.rank, manifest.step)
        return {}

    setattr(resume, "_restore_random", derive)  # noqa: B010


def _branches(number: int, segments: Sequence[Segment]) -> set[int]:
    """Return the steps of a segment from which later segments continue."""
    return {
        later.begins
        for position, later in enumerate(segments)
        if position > number and _owner(later.begins, segments[:position]) == number
    }


def _owner(step: int, segments: Sequence[Segment]) -> int | None:
    """Return the last segment that has computed a step."""
    found = [number for number, each in enumerate(segments) if each.begins < step <= each.ends]
    return found[-1] if found else None
