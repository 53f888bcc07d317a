"""Fuzzing of every kind of object: damage is reported or harmless, and wrong data is never loaded.

An exception other than TrainingError fails these tests.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.training.checkpoint.runs import MemoryBackend, complete_steps, newest, save, start
from training.checkpoint import chunks
from training.checkpoint.gc import GarbageCollector
from training.checkpoint.log import LogWriter, entry_key
from training.checkpoint.resume import resume
from training.checkpoint.retention import Retention
from training.checkpoint.selection import Selected
from training.checkpoint.state.training_state import TrainingState
from training.checkpoint.store import list_checkpoints
from training.checkpoint.tool.diff import compare
from training.checkpoint.tool.export import import_file
from training.checkpoint.tool.inspection import Verifier, describe, describe_checkpoints
from training.checkpoint.tool.transfer import plan_transfer, transfer
from training.errors import CorruptCheckpointError, TrainingError
from training.process.distributed import Gang, adopt_gang

pytestmark = pytest.mark.usefixtures("small_chunks")
WIDTH = 50


def build(seed: int) -> TrainingState:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
            optimizer.state[parameter] = {"step": torch.tensor(float(seed)), "exp_avg": parameter.detach() * 2}
    return TrainingState(model, optimizer, torch.amp.GradScaler("cpu", enabled=False), step=seed)


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield adopt_gang(torch.device("cpu"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(small_chunks: None) -> MemoryBackend:
    store = MemoryBackend()
    writer = start(store)
    for step in (1, 2):
        save(writer, step, build(step).tensors())
    return store


def use(store: MemoryBackend, gang: Gang) -> None:
    """Run every operation on a store: results must be correct, and errors must have a message."""
    state = build(99)
    with torch.random.fork_rng():
        try:
            resumed = resume(gang, store, state, None, seed=1)
        except TrainingError as error:
            assert str(error)
        else:
            step = 99 if resumed is None else resumed.manifest.step
            assert state.step == step
            loaded, wanted = state.tensors(), build(step).tensors()
            assert loaded.keys() == wanted.keys()
            assert all(torch.equal(loaded[name], wanted[name]) for name in wanted)
    for operation in (_inspect, _collect, _copy, lambda each: LogWriter(each, 5)):
        try:
            operation(store.copy())
        except TrainingError as error:
            assert str(error)


def _inspect(store: MemoryBackend) -> None:
    describe_checkpoints(store)
    complete = [
        Selected(store, listed.entry, listed.manifest)
        for listed in list_checkpoints(store)
        if listed.is_complete and listed.manifest is not None
    ]
    for listed in list_checkpoints(store):
        if listed.manifest is not None:
            Verifier(store, lambda _: None).verify(listed)
    for selected in complete:
        describe(selected)
    if len(complete) > 1:
        compare(complete[0], complete[1], lambda _: None)


def _collect(store: MemoryBackend) -> None:
    GarbageCollector(store, Retention(2)).collect(fence=99)


def _copy(store: MemoryBackend) -> None:
    wanted = [
        Selected(store, listed.entry, listed.manifest)
        for listed in list_checkpoints(store)
        if listed.is_complete and listed.manifest is not None
    ]
    copy = MemoryBackend()
    transfer(plan_transfer(wanted, copy), copy, lambda _: None)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    kind = draw(st.sampled_from(["flip", "cut", "extend", "zero", "replace"]))
    place = draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ (1 << draw(st.integers(0, 7)))]) + content[place + 1 :]
    if kind == "cut":
        return content[:place]
    if kind == "extend":
        return content + draw(st.binary(min_size=1, max_size=9))
    if kind == "zero":
        return content[:place] + bytes(len(content) - place)
    return draw(st.binary(max_size=40))


SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(data=st.data())
def test_damaged_objects_are_refused_or_skipped(data: st.DataObject, trained: MemoryBackend, gang: Gang) -> None:
    store = trained.copy()
    for key in data.draw(st.lists(st.sampled_from(store.keys("")), min_size=1, max_size=3, unique=True)):
        store.put(key, data.draw(damaged(store.get(key))))
    use(store, gang)


STRANGE: list[Any] = [
    *(None, True, -1, 0, 1, 7, 2**31, 2**63, 2**80, 1.5, float("inf"), float("nan"), "", "x", "7", [], [1], {}),
    *([-1, -1], {"a": 1}, "float8_e4m3fn", "chunks/00000000/" + "0" * 64, "\x00"),
]


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """Replace one value of the document, at any depth, or remove one key or item."""
    if isinstance(document, (dict, list)) and document and draw(st.integers(0, 5)):
        places = sorted(document) if isinstance(document, dict) else range(len(document))
        place = draw(st.sampled_from(list(places)))
        copy: Any = document.copy()
        if draw(st.integers(0, 9)) == 0:
            del copy[place]
        else:
            copy[place] = draw(altered(document[place]))
        return copy
    return draw(st.sampled_from(STRANGE))


@SETTINGS
@given(data=st.data())
def test_log_entries_of_wrong_types_are_refused(data: st.DataObject, trained: MemoryBackend, gang: Gang) -> None:
    store = trained.copy()
    key = data.draw(st.sampled_from(store.keys("log/")))
    store.put(key, json.dumps(data.draw(altered(json.loads(store.get(key))))).encode())
    use(store, gang)


@settings(SETTINGS, max_examples=120)
@given(data=st.data())
def test_manifests_of_wrong_types_are_refused(data: st.DataObject, trained: MemoryBackend, gang: Gang) -> None:
    """Manifests from a faulty writer, with the correct hash and a log entry that commits them."""
    store = trained.copy()
    entry = newest(store)
    assert entry.manifest is not None
    original = json.loads(chunks.decode(store.get(entry.manifest.key), entry.manifest.key[-64:], entry.manifest.bytes))
    document = json.loads(json.dumps(original))
    if data.draw(st.booleans()):
        document["parts"][0] = data.draw(altered(document["parts"][0]))
    else:
        document = data.draw(altered(document))
    content = json.dumps(document).encode()
    key = f"chunks/00000000/{chunks.plain_hash(content)}"
    store.put(key, chunks.encode(content, 1))
    committed = json.loads(store.get(entry_key(entry.sequence)))
    committed["manifest"] = {"key": key, "bytes": len(content)}
    store.put(entry_key(entry.sequence), json.dumps(committed).encode())
    try:
        use(store, gang)
    except AssertionError:
        # A manifest may only load as another state if it has the same chunks under other names or at other offsets.
        assert document["parts"] != original["parts"]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), element_bytes=st.sampled_from([1, 2, 4, 8, 16]), noise=st.booleans())
def test_damaged_chunks_are_refused(data: st.DataObject, element_bytes: int, noise: bool) -> None:
    plain = data.draw(st.binary(min_size=1, max_size=300)) if noise else bytes(range(16)) * 20
    name = chunks.plain_hash(plain)
    stored = chunks.encode(plain, element_bytes)
    content = data.draw(damaged(stored))
    try:
        assert chunks.decode(content, name, len(plain)) == plain
    except CorruptCheckpointError as error:
        assert name in str(error)


@settings(max_examples=300, deadline=None)
@given(
    widths=st.lists(st.integers(0, 255), max_size=5),
    codecs=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    sizes=st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 40), min_size=5, max_size=5),
    element_bytes=st.integers(0, 255),
    body=st.binary(max_size=80),
)
def test_chunks_with_invalid_headers_are_refused(
    widths: list[int], codecs: list[int], sizes: list[int], element_bytes: int, body: bytes
) -> None:
    header = struct.pack("<4sBB2x", chunks.MAGIC, element_bytes, len(widths))
    planes = b"".join(struct.pack("<BBxxI", *plane) for plane in zip(widths, codecs, sizes, strict=False))
    with pytest.raises(CorruptCheckpointError):
        chunks.decode(header + planes + body, chunks.plain_hash(b"something else"), 40)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_files_are_not_imported(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    from safetensors.torch import save as safetensors_bytes

    intact = safetensors_bytes({"weight": torch.arange(6.0)}, {"trainstack_manifest": '{"step": 1}'})
    path = tmp_path_factory.mktemp("file") / "file.safetensors"
    path.write_bytes(data.draw(damaged(intact)))
    store = MemoryBackend()
    try:
        entry = import_file(path, store, lambda _: None)
    except TrainingError as error:
        assert str(path) in str(error)
        assert store.objects == {}
    else:
        # The damage hit a tensor name, or the key of the manifest: the rest is a valid file with weights.
        assert entry.step == 0


def test_damaged_log_entry_hides_only_its_checkpoint(trained: MemoryBackend, caplog: Any) -> None:
    store = trained.copy()
    store.put(entry_key(2), b"{")
    assert complete_steps(store) == [1]
    assert "skipping log entry 2" in caplog.text
    assert LogWriter(store, 1).fence == 3
    other = trained.copy()
    other.put(entry_key(2), trained.get(entry_key(1)))
    assert complete_steps(other) == [1], "an entry under the key of another"
