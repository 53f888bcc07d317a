"""Saves that are in the local tier but not durable yet. A gang that starts on the same nodes resumes from them."""

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
from benchmarks.servers.local_moto import endpoint_environment
from tests.training.checkpoint.runs import Hooked, MemoryBackend, assert_holds, manifest, newest, save, start, state
from training.__main__ import main
from training.checkpoint.log import LogWriter
from training.checkpoint.resume import RESUMED_LOCALLY, newest_local, resume
from training.checkpoint.save.local_tier import LocalRecord, read_record
from training.checkpoint.state.training_state import TrainingState
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.tiers import TieredBackend
from training.checkpoint.store import checkpoint_entries, list_checkpoints
from training.checkpoint.tool.inspection import Verifier
from training.errors import StoreError
from training.process.distributed import Gang

pytestmark = pytest.mark.usefixtures("small_chunks")


class Gate:
    """Blocks writes of chunks until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, at: int, name: str, key: str) -> None:
        if name == "put" and key.startswith("chunks/"):
            self.reached.set()
            assert self.open.wait(60)


def new_state() -> TrainingState:
    torch.manual_seed(1)
    model = nn.Linear(64, 64)
    return TrainingState(model, torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", enabled=False))


def saved(step: int) -> dict[str, torch.Tensor]:
    return {"model/weight": torch.full((64, 64), float(step)), "model/bias": torch.full((64,), float(step))}


@pytest.fixture
def tiers(tmp_path: Path) -> TieredBackend:
    """Two tiers: a durable checkpoint for step 1, and a save for step 2 that reached only the local tier."""
    durable, gate = MemoryBackend(), Gate()
    backend = TieredBackend(DirectoryBackend(tmp_path), Hooked(durable, gate))
    gate.open.set()
    writer = start(backend)
    save(writer, 1, saved(1))
    gate.open.clear()
    gate.reached.clear()
    writer.begin(saved(2), {}, manifest(2), "interval")
    assert gate.reached.wait(60), "writing to the durable tier begins after the local tier is complete"
    assert read_record(backend, 0) is not None
    writer.cancel()
    gate.open.set()
    writer.wait()
    assert [entry.step for entry in checkpoint_entries(durable)] == [1]
    return TieredBackend(DirectoryBackend(tmp_path), durable)


def restart(gang: Gang, backend: TieredBackend, generation: int = 2) -> tuple[TrainingState, Any]:
    LogWriter(backend, generation)
    found = new_state()
    return found, resume(gang, backend, found, None, 0)


def test_resumes_from_the_local_tier(alone: Gang, tiers: TieredBackend) -> None:
    found, resumed = restart(alone, tiers)
    assert (found.step, resumed.is_durable, resumed.has_reusable_chunks) == (2, False, False)
    assert torch.equal(found.model.weight, saved(2)["model/weight"])


def test_ls_shows_the_contents_of_each_tier(
    tiers: TieredBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.checkpoint.tool.actions.open_existing", lambda url: tiers)
    local, durable = tiers.tiers
    assert main(["checkpoint", "ls", f"{tmp_path},memory"]) == 0
    output = capsys.readouterr()
    assert f"in {local.url}" in output.out and "all" in output.out
    assert f"step 2 is in {local.url} but not durable yet" in output.err and "shares of 1 of 1 ranks" in output.err
    local.delete(local.keys("chunks/"))
    assert main(["checkpoint", "ls", "--json", f"{tmp_path},memory"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["stored_bytes_by_tier"] == {local.url: 0, durable.url: listed["stored_bytes"]}
    save(start(tiers), 3, saved(3))
    main(["checkpoint", "ls", f"{tmp_path},memory"])
    assert "not durable yet" not in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["damaged", "lost"])
def test_skips_and_deletes_an_incomplete_local_save(alone: Gang, tiers: TieredBackend, harm: str) -> None:
    local, durable = tiers.tiers
    for key in set(local.keys("chunks/")) - set(durable.keys("chunks/")):
        local.put(key, local.get(key)[:-1] + b"?") if harm == "damaged" else local.delete([key])
    found, resumed = restart(alone, tiers)
    assert (found.step, resumed.is_durable, resumed.damaged) == (1, True, frozenset())
    assert torch.equal(found.model.weight, saved(1)["model/weight"])
    assert read_record(tiers, 0) is None


def test_fails_once_on_a_damaged_local_save_without_a_checkpoint(alone: Gang, tiers: TieredBackend) -> None:
    local, durable = tiers.tiers
    for key in local.keys("chunks/"):
        local.put(key, b"?")
    LogWriter(tiers, 1)
    durable.delete([key for key in durable.keys("log/") if b'"checkpoint"' in durable.get(key)])
    durable.delete(durable.keys("chunks/"))
    with pytest.raises(StoreError, match="local tier was corrupt and has been deleted; start the process again"):
        resume(alone, tiers, new_state(), None, 0)
    assert resume(alone, tiers, new_state(), None, 0) is None


def test_ignores_the_local_save_after_another_gang_started(alone: Gang, tiers: TieredBackend) -> None:
    LogWriter(tiers, 1)
    found, resumed = restart(alone, tiers)
    assert (found.step, resumed.is_durable) == (1, True)


def test_prefers_a_durable_checkpoint_to_an_older_local_one(alone: Gang, tiers: TieredBackend) -> None:
    save(start(tiers), 3, saved(3))
    tiers.tiers[0].put("local/rank-00000.json", LocalRecord.model_dump_json(_record(1, 1, 2)).encode())
    found, resumed = restart(alone, tiers)
    assert (found.step, resumed.is_durable) == (3, True)


def _record(fence: int, serial: int, step: int, world_size: int = 1) -> LocalRecord:
    part = {"tensors": {}, "chunks": [], "written_bytes": 0}
    given = {"fence": fence, "serial": serial, "manifest": manifest(step, world_size), "part": part}
    return LocalRecord.model_validate(given)


class _Ranks:
    """A gang whose ranks found these records."""

    rank = 0

    def __init__(self, found: list[LocalRecord | None]) -> None:
        self._found = found
        self.world_size = len(found)

    def gather(self, own: object) -> list[LocalRecord | None]:
        return self._found

    def ask_rank_zero(self, question: Any) -> Any:
        return question()


@pytest.mark.parametrize(
    ("found", "step"),
    [
        ([_record(0, 5, 9, 2), _record(0, 5, 9, 2)], 9),
        ([_record(0, 5, 9, 2), None], None),  # one node is new
        ([_record(0, 5, 9, 2), _record(0, 4, 8, 2)], None),  # a rank was killed before its share was complete
        ([_record(0, 5, 9, 2)] * 3, None),  # another world size
        ([_record(1, 5, 9, 2)] * 2, None),  # not the previous gang
        ([_record(0, 5, 1, 2)] * 2, None),  # already durable
    ],
)
def test_local_save_needs_the_shares_of_all_ranks(
    tmp_path: Path, found: list[LocalRecord | None], step: int | None
) -> None:
    backend = TieredBackend(DirectoryBackend(tmp_path), MemoryBackend())
    save(start(backend), 1)
    LogWriter(backend, 2)
    local = newest_local(_Ranks(found), backend)  # type: ignore[arg-type]
    assert (None if local is None else local.step) == step
    assert local is None or len(local.parts) == 2


def test_chunks_damaged_in_the_local_tier_become_durable_from_memory(tmp_path: Path) -> None:
    durable, gate = MemoryBackend(), Gate()
    local = DirectoryBackend(tmp_path)
    writer = start(TieredBackend(local, Hooked(durable, gate)))
    writer.begin(state(1), {}, manifest(1), "interval")
    assert gate.reached.wait(60)
    for number, key in enumerate(local.keys("chunks/")):
        local.put(key, b"?") if number % 2 else local.delete([key])
    gate.open.set()
    writer.wait()
    assert writer.error is None
    (listed,) = list_checkpoints(durable)
    assert not Verifier(durable, lambda _: None).verify(listed).problems
    assert_holds(durable, newest(durable))


def test_last_save_writes_to_both_tiers_at_once(tmp_path: Path) -> None:
    local, durable = MemoryBackend(), MemoryBackend()
    order: list[str] = []
    hooked_local = Hooked(local, lambda at, name, key: order.append(f"local {key[:5]}"))
    hooked_durable = Hooked(
        durable, lambda at, name, key: order.append(f"durable {key[:5]}") if name == "put" else None
    )
    writer = start(TieredBackend(hooked_local, hooked_durable))
    order.clear()
    writer.begin(state(1), {}, manifest(1), "stop")
    writer.wait()
    assert writer.error is None
    assert order[:2] == ["local chunk", "durable chunk"] and "local local" not in order
    assert local.keys("chunks/") == durable.keys("chunks/")


def test_save_of_a_terminating_node_skips_the_local_tier(tmp_path: Path) -> None:
    local, durable = MemoryBackend(), MemoryBackend()
    writer = start(TieredBackend(local, durable))
    writer.begin(state(1), {}, manifest(1), "stop", skip_local_tier=True)
    writer.wait()
    assert writer.error is None
    assert not local.objects.keys() & _chunks_of(durable)
    assert_holds(durable, newest(durable))


def _chunks_of(backend: MemoryBackend) -> set[str]:
    (listed,) = list_checkpoints(backend)
    assert listed.manifest is not None
    return {chunk.key for chunk in listed.manifest.chunks}


@pytest.mark.parametrize("manner", ["before", "after"])
def test_crash_at_every_operation_of_both_tiers(alone: Gang, manner: str) -> None:
    seen = []
    for number in count(1):
        local, durable, done = MemoryBackend(), MemoryBackend(), count(1)
        save(start(TieredBackend(local, durable)), 1, saved(1))

        def die(at: int, name: str, key: str, done: Any = done, number: int = number) -> None:
            at = next(done)
            if at > number or (at == number and manner == "before"):
                raise StoreError("dead")

        # A failed local tier is no longer used; here, the process must die instead.
        dying = TieredBackend(_KillingLocalTier(local, die), Hooked(durable, die))
        reached_end = True
        try:
            save(start(dying), 2, saved(2))
        except (StoreError, _Dead):
            reached_end = False
        found, resumed = restart(alone, TieredBackend(local, durable))
        assert torch.equal(found.model.weight, saved(found.step)["model/weight"])
        seen.append((found.step, resumed.is_durable))
        if reached_end and next(done) <= number:
            break
    assert seen[0] == (1, True) and seen[-1] == (2, True)
    assert (2, False) in seen
    assert seen == sorted(seen, key=lambda each: (each[0], each[1])), "a save in a tier stays there"


class _Dead(Exception):
    """Simulates the death of the process. No code catches it."""


class _KillingLocalTier(Hooked):
    """A local tier whose failure simulates the death of the process instead of a disk failure."""

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


def test_trainers_killed_during_the_upload_lose_no_step(
    gangs: Any, tiny_config: dict[str, Any], bucket: str, s3_environment: dict[str, str], slow_s3: FaultyS3
) -> None:
    config = {**tiny_config, "steps": 100000, "schedule": {"kind": "constant", "warmup_steps": 4}}
    checkpoints = f"{gangs._root / 'local'},s3://{bucket}/run"
    run = gangs.start("run", config, 2, checkpoints=checkpoints, environment=endpoint_environment(slow_s3.endpoint))
    run.wait_for(lambda: run.records("checkpoint"))
    slow_s3.misbehaviour = Misbehaviour(delay_seconds=60.0)
    at = max(record["step"] for record in run.records("checkpoint"))
    paths = [gangs._root / "local" / "local" / f"rank-{rank:05d}.json" for rank in (0, 1)]

    def steps() -> list[int]:
        records = [LocalRecord.model_validate_json(path.read_bytes()) for path in paths if path.exists()]
        return [record.manifest.step for record in records]

    run.wait_for(lambda: len(steps()) == 2 and len(set(steps())) == 1 and min(steps()) > at + 5)
    (wanted,) = set(steps())
    run.kill()
    again = gangs.start(
        "again", {**config, "steps": wanted + 4}, 2, generation=2, checkpoints=checkpoints, environment=s3_environment
    )
    again.wait_for(lambda: again.records("start"))
    slow_s3.misbehaviour = Misbehaviour()  # the writers of the killed trainers exit, because they are superseded
    assert again.wait() == [0, 0], again.errors()
    assert again.records("start")[0]["resumed_from_step"] == wanted
    assert RESUMED_LOCALLY in again.errors()
    first = again.records("checkpoint")[0]
    assert (first["step"], first["reason"]) == (wanted + 1, "resume")
