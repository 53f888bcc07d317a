"""A save is near before it is durable, and a gang that starts between the two on the same nodes loses nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour
from benchmarks.local_moto import endpoint_environment
from tests.training.checkpoint.runs import Hooked, MemoryBackend, assert_holds, manifest, newest, save, start, state
from training.__main__ import main
from training.checkpoint.directory import DirectoryBackend
from training.checkpoint.inspection import Verifier
from training.checkpoint.log import LogWriter
from training.checkpoint.near import NearRecord, newest_near, read_record
from training.checkpoint.resume import resume
from training.checkpoint.state import TrainingState
from training.checkpoint.store import checkpoint_entries, list_checkpoints
from training.checkpoint.tiers import TieredBackend
from training.distributed import Gang
from training.errors import StoreError

pytestmark = pytest.mark.usefixtures("small_chunks")


class Gate:
    """Holds uploads of chunks up until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, at: int, name: str, key: str) -> None:
        if name == "put" and key.startswith("chunks/"):
            self.reached.set()
            assert self.open.wait(60)


def own_state() -> TrainingState:
    torch.manual_seed(1)
    model = nn.Linear(64, 64)
    return TrainingState(model, torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", enabled=False))


def saved(step: int) -> dict[str, torch.Tensor]:
    return {"model/weight": torch.full((64, 64), float(step)), "model/bias": torch.full((64,), float(step))}


@pytest.fixture
def tiers(tmp_path: Path) -> TieredBackend:
    """Two tiers with a durable checkpoint of step 1, and of step 2 what is near of a save that never became durable."""
    durable, gate = MemoryBackend(), Gate()
    backend = TieredBackend(DirectoryBackend(tmp_path), Hooked(durable, gate))
    gate.open.set()
    writer = start(backend)
    save(writer, 1, saved(1))
    gate.open.clear()
    gate.reached.clear()
    writer.begin(saved(2), {}, manifest(2), "interval")
    assert gate.reached.wait(60), "the durable tier is reached when all is near"
    assert read_record(backend, 0) is not None
    writer.cancel()
    gate.open.set()
    writer.wait()
    assert [entry.step for entry in checkpoint_entries(durable)] == [1]
    return TieredBackend(DirectoryBackend(tmp_path), durable)


def go_on(gang: Gang, backend: TieredBackend, generation: int = 2) -> tuple[TrainingState, Any]:
    LogWriter(backend, generation)
    found = own_state()
    return found, resume(gang, backend, found, None, 0)


def test_a_start_between_the_two_goes_on_from_what_is_near(alone: Gang, tiers: TieredBackend) -> None:
    found, resumed = go_on(alone, tiers)
    assert (found.step, resumed.is_durable, resumed.chunks_are_kept) == (2, False, False)
    assert torch.equal(found.model.weight, saved(2)["model/weight"])


def test_the_tool_says_which_tier_has_what(
    tiers: TieredBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.checkpoint.tool.open_backend", lambda url: tiers)
    fast, durable = tiers.tiers
    assert main(["checkpoint", "ls", f"{tmp_path},memory"]) == 0
    told = capsys.readouterr()
    assert f"in {fast.url}" in told.out and "all" in told.out
    assert f"step 2 is in {fast.url} and not durable yet" in told.err and "shares of 1 of 1 ranks" in told.err
    fast.delete(fast.keys("chunks/"))
    assert main(["checkpoint", "ls", "--json", f"{tmp_path},memory"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["stored_bytes_by_tier"] == {fast.url: 0, durable.url: listed["stored_bytes"]}
    save(start(tiers), 3, saved(3))
    main(["checkpoint", "ls", f"{tmp_path},memory"])
    assert "not durable yet" not in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["damaged", "lost"])
def test_what_is_near_but_not_whole_is_passed_over_once(alone: Gang, tiers: TieredBackend, harm: str) -> None:
    fast, durable = tiers.tiers
    for key in set(fast.keys("chunks/")) - set(durable.keys("chunks/")):
        fast.put(key, fast.get(key)[:-1] + b"?") if harm == "damaged" else fast.delete([key])
    found, resumed = go_on(alone, tiers)
    assert (found.step, resumed.is_durable, resumed.passed_over) == (1, True, frozenset())
    assert torch.equal(found.model.weight, saved(1)["model/weight"])
    assert read_record(tiers, 0) is None


def test_what_is_near_is_no_beginning_if_it_is_damaged(alone: Gang, tiers: TieredBackend) -> None:
    fast, durable = tiers.tiers
    for key in fast.keys("chunks/"):
        fast.put(key, b"?")
    LogWriter(tiers, 1)
    durable.delete([key for key in durable.keys("log/") if b'"checkpoint"' in durable.get(key)])
    durable.delete(durable.keys("chunks/"))
    with pytest.raises(StoreError, match="damaged and given up; start again"):
        resume(alone, tiers, own_state(), None, 0)
    assert resume(alone, tiers, own_state(), None, 0) is None


def test_another_gang_that_began_meanwhile_goes_first(alone: Gang, tiers: TieredBackend) -> None:
    LogWriter(tiers, 1)
    found, resumed = go_on(alone, tiers)
    assert (found.step, resumed.is_durable) == (1, True)


def test_a_durable_checkpoint_is_preferred_to_an_older_near_one(alone: Gang, tiers: TieredBackend) -> None:
    save(start(tiers), 3, saved(3))
    tiers.tiers[0].put("near/rank-00000.json", NearRecord.model_dump_json(_record(1, 1, 2)).encode())
    found, resumed = go_on(alone, tiers)
    assert (found.step, resumed.is_durable) == (3, True)


def _record(epoch: int, serial: int, step: int, world_size: int = 1) -> NearRecord:
    part = {"tensors": {}, "chunks": [], "written_bytes": 0}
    given = {"epoch": epoch, "serial": serial, "manifest": manifest(step, world_size), "part": part}
    return NearRecord.model_validate(given)


class _Ranks:
    """A gang of which each rank has found something."""

    rank = 0

    def __init__(self, found: list[NearRecord | None]) -> None:
        self._found = found
        self.world_size = len(found)

    def gather(self, own: object) -> list[NearRecord | None]:
        return self._found

    def ask_rank_zero(self, question: Any) -> Any:
        return question()


@pytest.mark.parametrize(
    ("found", "step"),
    [
        ([_record(0, 5, 9, 2), _record(0, 5, 9, 2)], 9),
        ([_record(0, 5, 9, 2), None], None),  # a node is new
        ([_record(0, 5, 9, 2), _record(0, 4, 8, 2)], None),  # a rank was killed before it had stored its share
        ([_record(0, 5, 9, 2)] * 3, None),  # another number of ranks
        ([_record(1, 5, 9, 2)] * 2, None),  # of a gang that is not the one before this
        ([_record(0, 5, 1, 2)] * 2, None),  # durable already
    ],
)
def test_all_ranks_have_their_share_of_the_same_save_or_none_counts(
    tmp_path: Path, found: list[NearRecord | None], step: int | None
) -> None:
    backend = TieredBackend(DirectoryBackend(tmp_path), MemoryBackend())
    save(start(backend), 1)
    LogWriter(backend, 2)
    near = newest_near(_Ranks(found), backend)  # type: ignore[arg-type]
    assert (None if near is None else near.step) == step
    assert near is None or len(near.parts) == 2


def test_what_the_disk_near_by_spoils_is_durable_all_the_same(tmp_path: Path) -> None:
    durable, gate = MemoryBackend(), Gate()
    fast = DirectoryBackend(tmp_path)
    writer = start(TieredBackend(fast, Hooked(durable, gate)))
    writer.begin(state(1), {}, manifest(1), "interval")
    assert gate.reached.wait(60)
    for number, key in enumerate(fast.keys("chunks/")):
        fast.put(key, b"?") if number % 2 else fast.delete([key])
    gate.open.set()
    writer.wait()
    assert writer.error is None
    (listed,) = list_checkpoints(durable)
    assert not Verifier(durable, lambda _: None).verify(listed).problems
    assert_holds(durable, newest(durable))


def test_a_last_save_goes_to_the_durable_tier_at_once(tmp_path: Path) -> None:
    fast, durable = MemoryBackend(), MemoryBackend()
    order: list[str] = []
    near = Hooked(fast, lambda at, name, key: order.append(f"near {key[:5]}"))
    far = Hooked(durable, lambda at, name, key: order.append(f"far {key[:5]}") if name == "put" else None)
    writer = start(TieredBackend(near, far))
    order.clear()
    writer.begin(state(1), {}, manifest(1), "stop")
    writer.wait()
    assert writer.error is None
    assert order[:2] == ["near chunk", "far chunk"] and "near near/" not in order
    assert fast.keys("chunks/") == durable.keys("chunks/")


def test_a_node_that_leaves_keeps_no_copy_near(tmp_path: Path) -> None:
    fast, durable = MemoryBackend(), MemoryBackend()
    writer = start(TieredBackend(fast, durable))
    writer.begin(state(1), {}, manifest(1), "stop", node_leaves=True)
    writer.wait()
    assert writer.error is None
    assert not fast.objects.keys() & _chunks_of(durable)
    assert_holds(durable, newest(durable))


def _chunks_of(backend: MemoryBackend) -> set[str]:
    (listed,) = list_checkpoints(backend)
    assert listed.manifest is not None
    return {chunk.key for chunk in listed.manifest.chunks}


@pytest.mark.parametrize("manner", ["before", "after"])
def test_a_gang_may_die_at_every_operation_of_both_tiers(alone: Gang, manner: str) -> None:
    seen = []
    for number in count(1):
        fast, durable, done = MemoryBackend(), MemoryBackend(), count(1)
        save(start(TieredBackend(fast, durable)), 1, saved(1))

        def die(at: int, name: str, key: str, done: Any = done, number: int = number) -> None:
            at = next(done)
            if at > number or (at == number and manner == "before"):
                raise StoreError("dead")

        # A tier that does not work is done without; a dead process does nothing.
        dying = TieredBackend(_Mortal(fast, die), Hooked(durable, die))
        reached_end = True
        try:
            save(start(dying), 2, saved(2))
        except (StoreError, _Dead):
            reached_end = False
        found, resumed = go_on(alone, TieredBackend(fast, durable))
        assert torch.equal(found.model.weight, saved(found.step)["model/weight"])
        seen.append((found.step, resumed.is_durable))
        if reached_end and next(done) <= number:
            break
    assert seen[0] == (1, True) and seen[-1] == (2, True)
    assert (2, False) in seen
    assert seen == sorted(seen, key=lambda each: (each[0], each[1])), "what is near or durable stays so"


class _Dead(Exception):
    """The end of a process, which nothing catches."""


class _Mortal(Hooked):
    """Whose end is that of the process, not of a disk."""

    def put(self, key: str, content: bytes) -> None:
        try:
            super().put(key, content)
        except StoreError as error:
            raise _Dead from error


@pytest.fixture
def slow_s3(s3_endpoint: str) -> Iterator[FaultyS3]:
    proxy = FaultyS3(s3_endpoint, "seed")
    yield proxy
    proxy.close()


def test_trainers_that_die_during_the_upload_are_followed_by_some_that_lose_no_step(
    gangs: Any, tiny_config: dict[str, Any], bucket: str, s3_environment: dict[str, str], slow_s3: FaultyS3
) -> None:
    config = {**tiny_config, "steps": 100000, "schedule": {"kind": "constant", "warmup_steps": 4}}
    checkpoints = f"{gangs._root / 'fast'},s3://{bucket}/run"
    run = gangs.start("run", config, 2, checkpoints=checkpoints, environment=endpoint_environment(slow_s3.endpoint))
    run.wait_for(lambda: run.records("checkpoint"))
    slow_s3.misbehaviour = Misbehaviour(delay_seconds=60.0)
    at = max(record["step"] for record in run.records("checkpoint"))
    near = [gangs._root / "fast" / "near" / f"rank-{rank:05d}.json" for rank in (0, 1)]

    def steps() -> list[int]:
        records = [NearRecord.model_validate_json(path.read_bytes()) for path in near if path.exists()]
        return [record.manifest.step for record in records]

    run.wait_for(lambda: len(steps()) == 2 and len(set(steps())) == 1 and min(steps()) > at + 5)
    (wanted,) = set(steps())
    run.kill()
    again = gangs.start(
        "again", {**config, "steps": wanted + 4}, 2, generation=2, checkpoints=checkpoints, environment=s3_environment
    )
    again.wait_for(lambda: again.records("start"))
    slow_s3.misbehaviour = Misbehaviour()  # the writers of the killed trainers find that they are superseded, and end
    assert again.wait() == [0, 0], again.errors()
    assert again.records("start")[0]["resumed_from_step"] == wanted
    assert "was not durable yet" in again.errors()
    first = again.records("checkpoint")[0]
    assert (first["step"], first["reason"]) == (wanted + 1, "resume")
