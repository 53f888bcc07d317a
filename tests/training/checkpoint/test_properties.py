"""Tensors of any kind are restored bit for bit by every method of reading a store; equal tensors are stored once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.training.checkpoint.runs import MemoryBackend, complete_steps, load, manifest, newest, same, save, start
from training.checkpoint import Checkpointer, Retention
from training.checkpoint.layout import bytes_of
from training.checkpoint.save.rank_save import SavePlan
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.selection import Selected, select
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import list_checkpoints, read_manifest, read_tensors
from training.checkpoint.tool.export import SUPPORTED, export_file, import_file
from training.checkpoint.tool.transfer import plan_transfer, transfer
from training.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("small_chunks")

DTYPES = sorted({*SUPPORTED, torch.complex128, torch.float8_e8m0fnu}, key=str)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Return a tensor with any bits (NaNs, minus zero, denormals) and any type, shape and memory layout."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4) | st.just([60, 60]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    count = int(torch.Size(shape).numel())
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    tensor = (raw % 2).view(dtype) if dtype == torch.bool else raw.view(dtype)
    tensor = tensor.view(shape)
    layout = draw(st.sampled_from(["contiguous", "transposed", "strided", "expanded"]))
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1)
    if layout == "strided" and tensor.dim() >= 1:
        return tensor[::2]
    if layout == "expanded":
        return tensor.unsqueeze(0).expand(2, *shape)
    return tensor


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Tensor]:
    """Return named tensors, some of them under two names."""
    names = draw(st.lists(st.text("abc./_é", min_size=1, max_size=6), max_size=6, unique=True))
    tree: dict[str, Tensor] = {}
    for name in names:
        shares = tree and draw(st.booleans())
        tree[f"model/{name}"] = draw(st.sampled_from(list(tree.values()))) if shares else draw(tensors())
    return tree


def saved(tree: dict[str, Tensor]) -> MemoryBackend:
    store = MemoryBackend()
    save(start(store), 1, tree)
    return store


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert same(found[name], wanted[name]), name


@settings(max_examples=120, deadline=None)
@given(tree=trees())
def test_restores_any_tree_of_tensors(tree: dict[str, Tensor]) -> None:
    store = saved(tree)
    assert_same(load(store, newest(store)), tree)
    (part,) = read_manifest(store, newest(store)).parts
    chosen = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in list(tree.items())[::2]}
    read_tensors(store, part, {name: bytes_of(tensor).numpy().data for name, tensor in chosen.items()})
    assert_same(chosen, {name: tree[name] for name in chosen})


@settings(max_examples=40, deadline=None)
@given(tree=trees(), further=trees())
def test_copy_of_a_store_has_the_same_tensors(tree: dict[str, Tensor], further: dict[str, Tensor]) -> None:
    store, copy = MemoryBackend(), MemoryBackend()
    writer = start(store)
    for step, each in enumerate((tree, further), start=1):
        save(writer, step, each)
    for wanted in (tree, further):
        entry = next(one.entry for one in list_checkpoints(store) if one.entry.step == (1 if wanted is tree else 2))
        transfer(plan_transfer([Selected(store, entry, read_manifest(store, entry))], copy), copy, lambda _: None)
        assert_same(load(copy, newest(copy)), wanted)


@settings(max_examples=30, deadline=None)
@given(tree=trees())
def test_exports_and_imports_any_tree_or_names_unsupported_tensors(
    tree: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("export")
    save(start(DirectoryBackend(root / "store")), 1, tree)
    selected = select(str(root / "store"))
    unsupported = [name for name, tensor in tree.items() if tensor.dtype not in SUPPORTED]
    if unsupported:
        with pytest.raises(ConfigurationError) as refused:
            export_file(selected, root / "file", "state", False, lambda _: None)
        assert len(refused.value.problems) == len(unsupported)
        assert not (root / "file").exists()
        return
    for contents in ("state", "weights"):
        file = root / contents
        export_file(selected, file, contents, False, lambda _: None)
        back = DirectoryBackend(root / f"from-{contents}")
        entry = import_file(file, back, lambda _: None)
        assert_same(load(back, entry), tree)
        assert entry.step == (1 if contents == "state" else 0)


def size_bytes(store: DirectoryBackend) -> int:
    return sum(path.stat().st_size for path in store.root.rglob("*") if path.is_file())


def blocks(seed: int, frozen: int = 0) -> dict[str, Tensor]:
    """Return twelve blocks of noise; the first ``frozen`` are the same for every seed."""
    generators = [torch.Generator().manual_seed(n if n < frozen else 1000 * seed + n) for n in range(12)]
    return {f"model/blocks.{n}": torch.randn(100, 100, generator=generator) for n, generator in enumerate(generators)}


def test_best_checkpoint_equal_to_the_last_adds_almost_nothing(tmp_path: Path) -> None:
    store = DirectoryBackend(tmp_path)
    writer = start(store, retention=Retention(keep_best=1))
    save(writer, 1, blocks(1), validation_loss=1.0)
    before = size_bytes(store)
    save(writer, 2, blocks(1), validation_loss=0.5)
    assert (size_bytes(store) - before) / before < 0.01


def test_frozen_blocks_are_stored_once(tmp_path: Path) -> None:
    store = DirectoryBackend(tmp_path)
    writer = start(store)
    save(writer, 1, blocks(1, frozen=10))
    save(writer, 2, blocks(2, frozen=10))
    first, second = writer.take_results()
    assert second.written_bytes / first.written_bytes == pytest.approx(2 / 12, abs=0.02)
    resumed = start(store, generation=2)
    save(resumed, 3, blocks(3, frozen=10))
    assert resumed.take_results()[0].written_bytes == pytest.approx(second.written_bytes, rel=0.05)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 40)
        self.head = nn.Linear(40, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = Tied()
    checkpointer = Checkpointer(str(tmp_path), model, torch.optim.SGD(model.parameters()))
    checkpointer.resume()
    assert checkpointer.save(1, wait=True)
    checkpointer.close()
    torch.distributed.destroy_process_group()
    stored = read_manifest(open_backend(str(tmp_path)), newest(open_backend(str(tmp_path))))
    assert [name for part in stored.parts for name in part.tensors if name.startswith("model/")] == [
        "model/embedding.weight"
    ]
    other = Tied()
    resumed = Checkpointer(str(tmp_path), other, torch.optim.SGD(other.parameters()), generation=1)
    assert resumed.resume().step == 1
    torch.distributed.destroy_process_group()
    assert other.head.weight is other.embedding.weight
    assert torch.equal(other.head.weight, model.head.weight)


def test_branch_of_a_run_shares_chunks_by_links(tmp_path: Path) -> None:
    """A copy between directories links files; the branch then adds only the tensors that it changes."""
    trunk = DirectoryBackend(tmp_path / "trunk")
    writer = start(trunk)
    for step in (1, 2):
        save(writer, step, blocks(step, frozen=10))
    branch = DirectoryBackend(tmp_path / "branch")
    transfer(plan_transfer([select(f"{trunk.url}#1")], branch), branch, lambda _: None)
    for chunk in read_manifest(branch, newest(branch)).chunks:
        (original,) = trunk.root.glob(f"chunks/*/{chunk.blake3}")
        assert (branch.root / chunk.key).samefile(original)
    in_branch = start(branch, generation=1)
    save(in_branch, 2, blocks(7, frozen=10))
    assert in_branch.take_results()[0].written_bytes < 0.2 * sum(each.written_bytes for each in writer.take_results())
    for step in (3, 4, 5):
        save(writer, step, blocks(step, frozen=10))
    assert complete_steps(branch) == [2, 1], "the branch keeps the chunks that the trunk drops"
    assert_same(load(branch, newest(branch)), blocks(7, frozen=10))


def test_parts_of_two_ranks_form_one_state(tmp_path: Path) -> None:
    store = DirectoryBackend(tmp_path)
    first = start(store, world_size=2)
    second = CheckpointWriter(store, SavePlan(rank=1, world_size=2, fence=0), log=None)
    for writer in (first, second):
        writer.begin(blocks(1), {}, manifest(1, 2), "interval")
    for writer in (first, second):
        writer.wait()
        assert writer.error is None
    assert_same(load(store, newest(store)), blocks(1))
    assert [len(part.tensors) for part in read_manifest(store, newest(store)).parts] == [6, 6]
