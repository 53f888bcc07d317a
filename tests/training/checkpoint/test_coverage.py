"""Restored state equals the saved state. State that cannot be restored is rejected, with an error that names it, at
construction or at the first step.

Expected values are those of PyTorch: `state_dict` and `load_state_dict` of modules, optimizers and schedulers.
"""

from __future__ import annotations

import math
import random
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from training.checkpoint import Checkpointer
from training.checkpoint.state.generators import random_state, restore_random_state
from training.checkpoint.state.model import named_tensors
from training.checkpoint.state.values import decode, encode
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries
from training.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _destroy_process_group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def save(url: Path, model: nn.Module, optimizer: torch.optim.Optimizer, extra: dict[str, Any] | None = None) -> None:
    checkpointer = Checkpointer(str(url), model, optimizer)
    checkpointer.resume()
    checkpointer.save(1, extra, wait=True)
    checkpointer.close()


def resume(url: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    checkpointer = Checkpointer(str(url), model, optimizer, generation=1)
    resumed = checkpointer.resume()
    checkpointer.close()
    assert resumed.step == 1
    return resumed.extra


def refused(url: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Checkpointer(str(url), model, optimizer or sgd(model))
    return str(caught.value)


def identical(one: Any, other: Any) -> bool:
    """Return True if two values have the same types and contents; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool(torch.equal(_raw(one), _raw(other)))
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            identical(*keys) and identical(*values)
            for keys, values in zip(
                zip(one, other, strict=True), zip(one.values(), other.values(), strict=True), strict=True
            )
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (
            one == other or math.isnan(one) and math.isnan(other)
        )
    return bool(one == other)


def _raw(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


EXTRA: dict[str, Any] = {
    "ints": {1: 2, -3: "x", (1, "a"): None},
    "floats": [math.inf, -math.inf, math.nan, -0.0, 5e-324, 0.1],
    "large": 10**40,
    "tuple": (1, [2, (3,)]),
    "counter": Counter({5: 1, 7: 2}),
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "set": {1, 2},
    "bytes": b"\x00\xff",
    "tensor": torch.tensor([1.5, math.nan], dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(7),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "number": np.float64(0.1),
    "size": torch.Size([2, 3]),
    "dtype": torch.float16,
    "$": {"$": "not a tag"},
    "text": "\ud800 \u00e9 \n",
    "random": random.Random(3).getstate(),
}


def test_extra_comes_back_equal(tmp_path: Path) -> None:
    """https://github.com/Lightning-AI/pytorch-lightning/issues/10093 reports this fault with integer keys."""
    model = nn.Linear(2, 2)
    save(tmp_path, model, sgd(model), EXTRA)
    assert identical(resume(tmp_path, model, sgd(model)), EXTRA)


def test_denormal_numbers_come_back_equal_where_the_processor_flushes_them(tmp_path: Path) -> None:
    """The trainer calls `torch.set_flush_denormal(True)`, after which Python prints such a number as 0.0."""
    bits = [1, 2**63 + 5, 2**52 - 1, 0, 2**63]
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([3, -(2**31) + 7], dtype=torch.int32).view(torch.float32))
    before = _raw(model.bias)
    torch.set_flush_denormal(True)
    numbers = [struct.unpack("<d", struct.pack("<Q", each))[0] for each in bits]
    save(tmp_path, model, sgd(model), {"floats": numbers, "parts": complex(numbers[0], 1)})
    other = nn.Linear(2, 2)
    extra = resume(tmp_path, other, sgd(other))
    assert [struct.unpack("<Q", struct.pack("<d", each))[0] for each in extra["floats"]] == bits
    assert struct.pack("<d", extra["parts"].real) == struct.pack("<Q", 1)
    assert torch.equal(_raw(other.bias), before)


def test_extra_with_keys_other_than_strings_comes_back_equal(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    extra: Any = {1: 2, "a": 3}
    save(tmp_path, model, sgd(model), extra)
    assert identical(resume(tmp_path, model, sgd(model)), extra)


def test_multi_step_schedule_decays_after_a_resume(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Linear(2, 2)
        optimizer = sgd(model)
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 7])

    model, optimizer, schedule = build()
    for _ in range(3):
        optimizer.step()
        schedule.step()
    save(tmp_path, model, optimizer, {"schedule": schedule.state_dict()})
    model, optimizer, schedule = build()
    schedule.load_state_dict(resume(tmp_path, model, optimizer)["schedule"])
    rates = []
    for _ in range(5):
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001]), "decayed after steps 5 and 7"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"a": [1, object()]}, r"extra\['a'\]\[1\]: is a object, which cannot be saved"),
        ({"a": {"b": nn.Linear(1, 1)}}, r"extra\['a'\]\['b'\]: is a torch.nn.modules.linear.Linear"),
        ({"a": torch.ones(1, requires_grad=True)}, r"extra\['a'\]: is a tensor with requires_grad; pass tensor.detach"),
        ({"a": torch.ones(2).to_sparse()}, r"extra\['a'\]: is a tensor with layout torch.sparse_coo"),
        ({"a": np.array([None])}, r"extra\['a'\]: is a NumPy value of type object"),
        ({"a": np.array(["b"], np.dtypes.StringDType())}, r"extra\['a'\]: is a NumPy value of type StringDType"),
        ({"a": nn.Parameter(torch.ones(1), requires_grad=False)}, r"extra\['a'\]: is a Parameter; pass"),
    ],
)
def test_extra_of_other_types_is_refused_before_anything_is_written(
    tmp_path: Path, extra: dict[str, Any], message: str
) -> None:
    model = nn.Linear(2, 2)
    checkpointer = Checkpointer(str(tmp_path), model, sgd(model))
    checkpointer.resume()
    with pytest.raises(ConfigurationError, match=message):
        checkpointer.save(1, extra)
    assert checkpointer.save(2, {"a": 1}, wait=True), "the checkpointer works on"
    checkpointer.close()
    assert [entry.step for entry in checkpoint_entries(open_backend(str(tmp_path)))] == [2]


def test_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ConfigurationError, match="contains itself"):
        encode(value, "extra")


def test_deepest_value_is_read_back(tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(39):
        value = {1: value}
    model = nn.Linear(2, 2)
    save(tmp_path, model, sgd(model), {"deep": value})
    assert resume(tmp_path, model, sgd(model)) == {"deep": value}


class Inner(nn.Module):
    """A user's module whose attribute has the name that DistributedDataParallel uses."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(1, 1)
        self._orig_mod = nn.Linear(1, 1)
        self.weight = nn.Parameter(torch.zeros(1))


def test_names_are_those_of_the_bare_model() -> None:
    """https://docs.pytorch.org/docs/2.13/generated/torch.nn.Module.html: `named_parameters` of the bare model."""
    bare = Inner()
    expected = [name for name, _ in bare.named_parameters()]
    assert "module.weight" in expected and "weight" in expected
    for wrapped in (bare, torch.compile(bare), nn.DataParallel(torch.compile(bare)), checkpoint_wrapper(bare)):
        assert list(named_tensors(wrapped).parameters) == expected  # type: ignore[arg-type]
    outer = nn.Sequential(torch.compile(bare), checkpoint_wrapper(nn.BatchNorm1d(1)))
    named = named_tensors(outer)
    assert list(named.parameters) == [*(f"0.{name}" for name in expected), "1.weight", "1.bias"]
    assert list(named.buffers) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]


def test_modules_named_as_wrappers_are_saved_under_their_own_names(tmp_path: Path) -> None:
    model = Inner()
    save(tmp_path, model, sgd(model))
    other = Inner()
    resume(tmp_path, other, sgd(other))
    assert identical(dict(other.state_dict()), dict(model.state_dict()))


def test_buffer_first_named_where_it_is_not_persistent_is_saved(tmp_path: Path) -> None:
    def build(value: float) -> nn.Module:
        model = nn.Linear(1, 1)
        shared = torch.full((2,), value)
        model.register_buffer("cache", shared, persistent=False)
        model.register_buffer("kept", shared)
        return model

    model, other = build(1.0), build(2.0)
    save(tmp_path, model, sgd(model))
    resume(tmp_path, other, sgd(other))
    assert torch.equal(other.get_buffer("kept"), torch.ones(2))


def test_refuses_two_tensors_of_one_name(tmp_path: Path) -> None:
    wrapper = nn.DataParallel(nn.Linear(1, 1))
    wrapper.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    assert "two tensors are named weight without wrappers" in refused(tmp_path, wrapper)


def test_refuses_parameters_of_the_optimizer_outside_the_model(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.zeros(5, 3))])
    assert "group 0 has a parameter of shape [5, 3] that is not in the model" in refused(tmp_path, model, optimizer)
    assert not list(tmp_path.iterdir())


def test_refuses_parameters_that_a_group_adds_later(tmp_path: Path) -> None:
    """A head that is unfrozen or replaced during training is added with add_param_group."""
    model = nn.Linear(2, 2)
    optimizer = sgd(model)
    checkpointer = Checkpointer(str(tmp_path), model, optimizer)
    checkpointer.resume()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(5, 3))]})
    with pytest.raises(ConfigurationError, match=r"group 1 has a parameter of shape \[5, 3\] that is not in the model"):
        checkpointer.save(1)
    checkpointer.close()


class Scaled(nn.Linear):
    """Keeps its scale as extra state, as FP8 layers do (NVIDIA TransformerEngine issue 1860)."""

    def __init__(self, scale: Any) -> None:
        super().__init__(2, 2)
        self.scale = scale

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


def test_extra_state_of_modules_comes_back(tmp_path: Path) -> None:
    scale = {448: torch.tensor([0.5, math.inf])}
    model, other = nn.Sequential(Scaled(scale)), nn.Sequential(Scaled(None))
    save(tmp_path, model, sgd(model))
    resume(tmp_path, other, sgd(other))
    assert identical(other[0].scale, scale)


@pytest.mark.parametrize("has_lost_it", [True, False])
def test_refuses_a_model_whose_extra_states_differ(tmp_path: Path, has_lost_it: bool) -> None:
    models = [nn.Sequential(Scaled(1)), nn.Sequential(nn.Linear(2, 2))]
    saved, other = models if has_lost_it else models[::-1]
    save(tmp_path, saved, sgd(saved))
    before = other[0].weight.detach().clone()
    with pytest.raises(
        ConfigurationError, match=r"has 0\._extra_state, but the model does not" if has_lost_it else "does not have"
    ):
        resume(tmp_path, other, sgd(other))
    assert torch.equal(other[0].weight, before)


def test_refuses_extra_state_that_cannot_be_saved(tmp_path: Path) -> None:
    model = nn.Sequential(Scaled(object()))
    assert "get_extra_state() of 0['scale']: is a object" in refused(tmp_path, model)

    class WithoutSetter(nn.Linear):
        def get_extra_state(self) -> Any:
            return 1

    assert "0 has get_extra_state() without set_extra_state()" in refused(tmp_path, nn.Sequential(WithoutSetter(1, 1)))


def test_refuses_entries_of_a_state_dict_that_are_not_saved(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)

    def add(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        state[f"{prefix}quantization"] = torch.ones(1)

    model.register_state_dict_post_hook(add)
    assert "its state_dict() has quantization, which is not a parameter" in refused(tmp_path, model)


def with_buffer(buffer: Tensor) -> nn.Module:
    model = nn.Linear(1, 1)
    model.register_buffer("mask", buffer)
    return model


def test_refuses_buffers_that_cannot_be_loaded(tmp_path: Path) -> None:
    """https://docs.pytorch.org/docs/2.13/generated/torch.Tensor.expand.html: must not be written in place."""
    buffer = torch.ones(1, 8).expand(4, 8)
    with pytest.raises(RuntimeError, match="single memory location"):
        buffer.copy_(buffer.clone())
    assert "elements of mask share memory" in refused(tmp_path, with_buffer(buffer))


LAYOUTS = {
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "strided": torch.arange(9.0)[::2],
    "gaps": torch.arange(6.0).as_strided((2, 2), (1, 3)),
    "windows": torch.arange(10.0).unfold(0, 4, 1),
    "empty": torch.ones(1, 0).expand(4, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_buffers_of_other_layouts_come_back_equal(tmp_path: Path, layout: str) -> None:
    buffer = LAYOUTS[layout]
    model, other = with_buffer(buffer), with_buffer(buffer.clone())
    save(tmp_path, model, sgd(model))
    other.get_buffer("mask").zero_()
    resume(tmp_path, other, sgd(other))
    assert torch.equal(other.get_buffer("mask"), buffer)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (with_buffer(torch.ones(2).to_sparse()), "mask is a tensor with layout torch.sparse_coo"),
        (with_buffer(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)), "mask is a quantized tensor"),
        (nn.Linear(2, 2, device="meta"), "weight is on the meta device"),
        (nn.LazyLinear(2), "weight has no shape yet; run a forward pass first"),
    ],
    ids=["sparse", "quantized", "meta", "lazy"],
)
def test_refuses_tensors_of_other_kinds(tmp_path: Path, model: nn.Module, message: str) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    assert message in refused(tmp_path, model, optimizer)


class Odd(torch.optim.SGD):
    """An optimizer with state that is neither a tensor nor a plain value."""

    def step(self, closure: Any = None) -> Any:
        self.state[self.param_groups[0]["params"][0]]["history"] = [object()]


def test_refuses_state_of_an_optimizer_at_its_first_step(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = Odd(model.parameters(), lr=0.1)
    Checkpointer(str(tmp_path), model, optimizer).resume()
    with pytest.raises(ConfigurationError, match=r"its state of weight\['history'\]\[0\]: is a object"):
        optimizer.step()


def test_tensor_learning_rate_stays_a_tensor(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.25), foreach=False)
    save(tmp_path, model, optimizer)
    given = torch.tensor(0.5)
    other = torch.optim.AdamW(model.parameters(), lr=given, foreach=False)
    resume(tmp_path, model, other)
    assert other.param_groups[0]["lr"] is given and given.item() == 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: torch.optim.SGD(model.parameters()), "optimizer is torch.optim.adamw.AdamW, but this run's is"),
        (
            lambda model: torch.optim.AdamW([{"params": [p]} for p in model.parameters()]),
            "its optimizer has 1 parameter groups, but this run's has 2",
        ),
        (lambda model: torch.optim.AdamW([model.weight]), "bias (1 in total) is only in the checkpoint's"),
    ],
)
def test_refuses_another_optimizer_and_changes_nothing(tmp_path: Path, change: Any, message: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save(tmp_path, model, optimizer)
    other = nn.Linear(2, 2)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(ConfigurationError) as caught:
        resume(tmp_path, other, change(other))
    assert message in str(caught.value) and "name a new run" in str(caught.value)
    assert identical(dict(other.state_dict()), before)


def test_generators_of_python_and_numpy_continue(tmp_path: Path) -> None:
    random.gauss(0, 1)
    np.random.standard_normal(3)  # leaves a pending variate, as gauss does
    model = nn.Linear(1, 1)
    save(tmp_path, model, sgd(model))
    drawn = [random.gauss(0, 1), random.random(), *np.random.standard_normal(3).tolist(), torch.rand(()).item()]
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    resume(tmp_path, model, sgd(model))
    again = [random.gauss(0, 1), random.random(), *np.random.standard_normal(3).tolist(), torch.rand(()).item()]
    assert again == drawn


def test_random_states_have_one_size() -> None:
    """The host buffer is reallocated when the size of the state changes."""
    device = torch.device("cpu")
    first = random_state(device)
    random.gauss(0, 1)
    np.random.standard_normal()
    assert {name: state.shape for name, state in random_state(device).items()} == {
        name: state.shape for name, state in first.items()
    }
    restore_random_state(first, device)
    assert identical(random_state(device), first)


def test_encoding_is_plain_json_where_it_can_be() -> None:
    plain = {"a": [1, 2.5, None, True, "x"], "b": {"c": {}}}
    assert encode(plain, "extra") == plain and decode(plain) == plain
