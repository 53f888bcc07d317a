"""Random models with every optimizer of torch.optim: saved, resumed, exported and imported with equal bits, or
rejected.

The reference is an uninterrupted run: the resumed model and optimizer must continue with the same bits, also when they
resume from an import of the exported state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tests.training.checkpoint.runs import MemoryBackend, manifest, newest, start
from tests.training.checkpoint.test_coverage import identical
from training.checkpoint.resume import own_tensors, resume
from training.checkpoint.selection import Selected
from training.checkpoint.state.training_state import TrainingState
from training.checkpoint.store import read_manifest
from training.checkpoint.tool.export import Contents, export_file, import_file
from training.errors import ConfigurationError
from training.process.distributed import Gang, join_gang

OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)

WIDTH = 4
BUFFERS: dict[str, Callable[[], Tensor | None]] = {
    "integers": lambda: torch.randint(0, 99, (3,)),
    "boolean": lambda: torch.rand(3) > 0.5,
    "bfloat16": lambda: torch.randn(2, 2, dtype=torch.bfloat16),
    "half": lambda: torch.randn(5, dtype=torch.float16),
    "float8": lambda: torch.randn(5).to(torch.float8_e4m3fn),
    "float8_scale": lambda: torch.randint(0, 254, (5,), dtype=torch.uint8).view(torch.float8_e8m0fnu),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "wide_complex": lambda: torch.randn(3, dtype=torch.complex128),
    "bytes": lambda: torch.randint(-99, 99, (3, 1, 2), dtype=torch.int8),
    "wide_unsigned": lambda: torch.randint(0, 99, (2,)).to(torch.uint64),
    "denormal": lambda: torch.tensor([1, 5, -(2**31) + 3], dtype=torch.int32).view(torch.float32),
    "unsigned": lambda: torch.randint(0, 99, (3,)).to(torch.uint16),
    "transposed": lambda: torch.randn(2, 3).t(),
    "strided": lambda: torch.randn(9)[::2],
    "scalar": lambda: torch.randn(()),
    "empty": lambda: torch.empty(0, 2),
    "none": lambda: None,
    "nonfinite": lambda: torch.tensor([float("nan"), float("inf"), -0.0]),
    "expanded": lambda: torch.randn(1, 3).expand(2, 3),
}
NOT_IN_SAFETENSORS = {"float8_scale", "wide_complex"}
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "bare": lambda model: model,
    "compiled": lambda model: torch.compile(model),  # type: ignore[dict-item]
    "data_parallel": nn.DataParallel,
    "nested": lambda model: nn.DataParallel(nn.DataParallel(model)),
    "both": lambda model: nn.DataParallel(torch.compile(model)),  # type: ignore[arg-type]
}


@dataclass(frozen=True)
class Drawn:
    """The description of a model and an optimizer, which can be built any number of times."""

    seed: int
    blocks: list[str]
    buffers: dict[str, str]
    persistent: dict[str, bool]
    dtype: torch.dtype
    optimizer: str
    groups: int
    tensor_rate: bool
    frozen: bool
    alias: str | None = None


class Block(nn.Module):
    """A layer of one kind, with a buffer that changes in each forward pass, and extra state."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        linear = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        wrap: Any = {"recomputed": checkpoint_wrapper, "parallel": nn.DataParallel}.get(kind, lambda module: module)
        self.module: nn.Module = wrap(linear)
        self._orig_mod = nn.BatchNorm1d(WIDTH, dtype=dtype) if kind == "norm" else nn.Identity()
        self.again = self.module if kind == "shared" else nn.Identity()
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.seen: dict[int, float] = {}

    def forward(self, x: Tensor) -> Any:
        self.get_buffer("passes").add_(1)
        self.seen[int(self.get_buffer("passes"))] = float("inf")
        return torch.tanh(self.again(self._orig_mod(self.module(x))))

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


class Model(nn.Module):
    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.sparse = drawn.optimizer == "SparseAdam"
        self.embedding = nn.Embedding(7, WIDTH, sparse=self.sparse, dtype=drawn.dtype)
        self.blocks = nn.ModuleList()
        for number, kind in enumerate(drawn.blocks):
            self.blocks.append(self.blocks[0] if kind == "alias" and number else Block(kind, drawn.dtype))
        self.head = nn.Linear(WIDTH, 7, bias=False, dtype=drawn.dtype)
        if "tied" in drawn.blocks and not self.sparse:
            self.head.weight = self.embedding.weight
        for name, kind in drawn.buffers.items():
            self.register_buffer(name, BUFFERS[kind](), persistent=drawn.persistent[name])
        if drawn.alias == "buffer":
            self.register_buffer("one", torch.zeros(3))
            self.register_buffer("other", self.get_buffer("one"))
        elif drawn.alias == "view":
            self.register_buffer("rows", self.embedding.weight.detach()[2:])
        if drawn.frozen and not self.sparse:
            self.head.weight.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).float().square().mean()


def build(drawn: Drawn, seed: int) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Model(drawn)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind: Any = getattr(torch.optim, drawn.optimizer)
    options: dict[str, Any] = {"lr": torch.tensor(0.01) if drawn.tensor_rate else 0.01}
    if drawn.optimizer == "SparseAdam":
        parameters = [model.embedding.weight]
    elif drawn.optimizer == "Muon":
        parameters = [parameter for parameter in parameters if parameter.dim() == 2]
    elif drawn.optimizer == "LBFGS":
        return model, kind(parameters, lr=0.01, max_iter=3, history_size=2)
    elif drawn.optimizer == "SGD":
        options["momentum"] = 0.5
    groups = [parameters[number :: drawn.groups] for number in range(drawn.groups)]
    return model, kind([{"params": group, "weight": 1} for group in groups if group], **options)


def step(model: Model, optimizer: torch.optim.Optimizer, number: int) -> None:
    tokens = torch.randint(0, 7, (2 + number % 4,), generator=torch.Generator().manual_seed(number))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


@st.composite
def drawn_states(draw: st.DrawFn) -> Drawn:
    optimizer = draw(st.sampled_from(OPTIMIZERS))
    names = draw(st.lists(st.sampled_from(["mask", "module", "table", "x_orig_mod"]), max_size=3, unique=True))
    return Drawn(
        seed=draw(st.integers(0, 99)),
        blocks=draw(
            st.lists(
                st.sampled_from(["plain", "norm", "shared", "recomputed", "parallel", "alias", "tied"]),
                min_size=1,
                max_size=3,
            )
        ),
        buffers={name: draw(st.sampled_from(sorted(BUFFERS))) for name in names},
        persistent={name: draw(st.booleans()) for name in names},
        dtype=draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
        optimizer=optimizer,
        groups=draw(st.integers(1, 2)),
        tensor_rate=optimizer in ("Adam", "AdamW", "SGD") and draw(st.booleans()),
        frozen=draw(st.booleans()),
        alias=draw(st.sampled_from([None, "buffer", "view"])),
    )


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    gang = join_gang()
    yield gang
    gang.leave()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    return TrainingState(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))


def contents(model: Model, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return all state as PyTorch defines it; the order of an optimizer's entries has no meaning."""
    held = optimizer.state_dict()
    entries = {number: dict(sorted(entry.items())) for number, entry in sorted(held["state"].items())}
    return [dict(model.state_dict()), entries, held["param_groups"]]


@dataclass
class Trained:
    """A run's checkpoint after some steps, and the run's state then and two steps later.

    Attributes:
        random: the random numbers that the process drew next.
    """

    drawn: Drawn
    steps: int
    store: MemoryBackend
    random: Tensor
    saved: list[Any]
    continued: list[Any]


def trained(drawn: Drawn, wrapper: str, steps: int, gang: Gang) -> Trained | None:
    """Train and save; return None if the state is rejected with a reason."""
    refused = [name for name, kind in drawn.buffers.items() if kind == "expanded" and drawn.persistent[name]]
    model, optimizer = build(drawn, drawn.seed)
    if refused:
        with pytest.raises(ConfigurationError) as caught:
            state_of(WRAPPERS[wrapper](model), optimizer)
        assert all(f"elements of {name} share memory" in str(caught.value) for name in refused)
        return None
    state = state_of(WRAPPERS[wrapper](model), optimizer)
    for number in range(steps):
        step(model, optimizer, number)
    store = MemoryBackend()
    writer = start(store)
    captured = state.capture()
    record = manifest(steps).model_copy(update={"optimizer": captured.optimizer, "extra_states": captured.extra_states})
    writer.begin(captured.shared, own_tensors(gang, captured), record, "request")
    writer.wait()
    assert writer.error is None
    random, saved = torch.rand(3), copy.deepcopy(contents(model, optimizer))
    for number in range(steps, steps + 2):
        step(model, optimizer, number)
    return Trained(drawn, steps, store, random, saved, copy.deepcopy(contents(model, optimizer)))


def check_resume(run: Trained, store: MemoryBackend, wrapper: str, gang: Gang) -> None:
    """Resume another model from a store, and continue it."""
    other, other_optimizer = build(run.drawn, run.drawn.seed + 1)
    state = state_of(WRAPPERS[wrapper](other), other_optimizer)
    resumed = resume(gang, store, state, None, seed=1)
    assert resumed is not None and resumed.manifest.optimizer is not None
    state.restore_groups(resumed.manifest.optimizer)
    assert identical(contents(other, other_optimizer), run.saved)
    assert torch.equal(torch.rand(3), run.random)
    for number in range(run.steps, run.steps + 2):
        step(other, other_optimizer, number)
    assert identical(contents(other, other_optimizer), run.continued)


def exchanged(run: Trained, kind: Contents, folder: Path) -> MemoryBackend | None:
    """Export and import a run's checkpoint; return None if the export is rejected and the error names the tensors."""
    unsupported = {
        name for name, each in run.drawn.buffers.items() if each in NOT_IN_SAFETENSORS and run.drawn.persistent[name]
    }
    entry = newest(run.store)
    selected = Selected(run.store, entry, read_manifest(run.store, entry))
    path = folder / f"{kind}.safetensors"
    if unsupported:
        with pytest.raises(ConfigurationError) as caught:
            export_file(selected, path, kind, True, lambda _: None)
        assert all(f"of model/{name}; use pull" in str(caught.value) for name in unsupported)
        return None
    export_file(selected, path, kind, True, lambda _: None)
    store = MemoryBackend()
    import_file(path, store, lambda _: None)
    return store


def check(drawn: Drawn, wrappers: tuple[str, str], steps: int, gang: Gang, folder: Path) -> None:
    run = trained(drawn, wrappers[0], steps, gang)
    if run is None:
        return
    check_resume(run, run.store, wrappers[1], gang)
    imported = exchanged(run, "state", folder)
    if imported is not None:
        check_resume(run, imported, wrappers[1], gang)
    weights = exchanged(run, "weights", folder)
    if weights is not None:
        other, optimizer = build(drawn, drawn.seed + 2)
        assert resume(gang, weights, state_of(WRAPPERS[wrappers[1]](other), optimizer), None, seed=1) is not None
        assert identical(tensors_of(other.state_dict()), tensors_of(run.saved[0])) and not optimizer.state


def tensors_of(state: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in state.items() if isinstance(each, Tensor)}


CASES = {
    "drawn": drawn_states(),
    "wrappers": st.tuples(st.sampled_from(sorted(WRAPPERS)), st.sampled_from(sorted(WRAPPERS))),
    "steps": st.integers(0, 3),
}


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(**CASES)
def test_state_comes_back_equal_or_is_refused(
    gang: Gang, folder: Path, drawn: Drawn, wrappers: tuple[str, str], steps: int
) -> None:
    check(drawn, wrappers, steps, gang, folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(**CASES)
def test_state_comes_back_equal_or_is_refused_in_many_cases(
    gang: Gang, folder: Path, drawn: Drawn, wrappers: tuple[str, str], steps: int
) -> None:
    check(drawn, wrappers, steps, gang, folder)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_comes_back_equal(gang: Gang, folder: Path, optimizer: str) -> None:
    drawn = Drawn(3, ["plain", "norm"], {}, {}, torch.float32, optimizer, 2, False, False)
    check(drawn, ("bare", "both"), 3, gang, folder)
