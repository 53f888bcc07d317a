"""Execution and schedule settings, model architectures, and precision."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from training.config import ExecutionConfig, ModelShape, TrainingConfig
from training.errors import ConfigurationError
from training.loop.lr_schedule import learning_rate
from training.models.gpt import GPT
from training.models.llama import Llama, feed_forward_width
from training.process.execution import choose_attention, set_up_process
from training.process.garbage_collection import GarbageCollection, paused_garbage_collection
from training.process.precision import Precision, choose_precision

SHAPE = ModelShape(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, sequence_length=16)
FP32 = Precision("fp32", "cpu")


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(100, (2, 17), generator=generator)
    torch.manual_seed(2)
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_recomputed_blocks_have_the_same_gradients(kind: str) -> None:
    def build(recomputes: bool) -> torch.nn.Module:
        torch.manual_seed(0)
        return GPT(SHAPE, 100, 0.1, recomputes) if kind == "gpt" else Llama(SHAPE, 100, 2, recomputes)

    plain, recomputed = gradients(build(False)), gradients(build(True))
    assert len(plain) == len(list(build(False).parameters()))
    assert all(torch.equal(first, second) for first, second in zip(plain, recomputed, strict=True))


@pytest.fixture
def kernels() -> Iterator[None]:
    backends = torch.backends.cuda
    before = (backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.cudnn_sdp_enabled())
    math = backends.math_sdp_enabled()
    yield
    backends.enable_flash_sdp(before[0])
    backends.enable_mem_efficient_sdp(before[1])
    backends.enable_cudnn_sdp(before[2])
    backends.enable_math_sdp(math)


@pytest.mark.parametrize("wanted", ["flash", "math"])
def test_configured_attention_kernel_runs(kernels: None, wanted: str) -> None:
    assert choose_attention(ExecutionConfig(attention=wanted), 8, FP32, 0.0) == wanted
    with torch.profiler.profile() as profile:
        gradients(GPT(SHAPE, 100))
    used = {event.key for event in profile.key_averages() if "scaled_dot_product" in event.key}
    assert any(wanted in name for name in used) and not any(
        {"flash": "_math", "math": "flash"}[wanted] in n for n in used
    )


def test_unsupported_attention_kernel_is_rejected(kernels: None) -> None:
    with pytest.raises(ConfigurationError, match="execution.attention: cudnn does not support heads of 8 channels"):
        choose_attention(ExecutionConfig(attention="cudnn"), 8, FP32, 0.0)


def test_automatic_attention_kernel_is_named() -> None:
    assert choose_attention(ExecutionConfig(), 8, FP32, 0.0) in ("flash", "math")


def test_compiled_kernels_are_kept_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart does not recompile: https://github.com/pytorch/pytorch/issues/172547."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    import os

    config = TrainingConfig.model_validate({"threads": torch.get_num_threads()})
    set_up_process(config, 1, tmp_path / "gen-2")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compile-cache" / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


def test_garbage_collection_runs_at_the_configured_steps() -> None:
    garbage = GarbageCollection(2)
    try:
        assert not gc.isenabled()
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        garbage.after_step(1)
        before = gc.get_stats()[2]["collections"]
        garbage.after_step(2)
        assert gc.get_stats()[2]["collections"] == before + 1
    finally:
        garbage.close()
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_garbage_collection_is_paused_unless_it_was_off() -> None:
    with paused_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def config_of(**schedule: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"steps": 100, "schedule": schedule})


def test_onecycle_rises_and_decays_by_a_cosine() -> None:
    rates = [learning_rate(step, config_of(kind="onecycle")) for step in range(101)]
    assert rates[0] == pytest.approx(1e-3 / 25)
    assert rates[30] == max(rates) == 1e-3
    assert rates[:31] == sorted(rates[:31]) and rates[30:] == sorted(rates[30:], reverse=True)
    assert rates[100] == pytest.approx(4e-9)


def test_wsd_is_constant_and_decays_at_the_end() -> None:
    rates = [learning_rate(step, config_of(kind="wsd", warmup_steps=10, decay_steps=20)) for step in range(101)]
    assert set(rates[9:81]) == {1e-3}
    assert rates[80:] == sorted(rates[80:], reverse=True)
    assert rates[85] == pytest.approx(0.5e-3)
    assert rates[100] == 0.0


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"schedule": {"kind": "cosine", "decay_steps": 5}}, "decay_steps 5 applies only to wsd"),
        ({"schedule": {"kind": "constant", "min_lr_ratio": 0.5}}, "does not apply to kind constant"),
        ({"steps": 10, "schedule": {"kind": "wsd", "decay_steps": 11}}, "exceeds steps 10"),
        ({"parallel": {"static_graph": True, "find_unused_parameters": True}}, "remove one"),
        ({"model": {"preset": "gpt2", "architecture": "llama"}}, "is not a llama"),
        ({"model": {"preset": "gpt2", "num_key_value_heads": 2}}, "applies to llama only"),
        ({"model": {"preset": "llama-1b", "dropout": 0.1}}, "applies to gpt only"),
        ({"model": {"preset": "llama-1b", "num_key_value_heads": 5}}, "not a multiple of num_key_value_heads 5"),
        (
            {"model": {"function": "a:b"}, "execution": {"activation_checkpointing": True}},
            "not supported with model.function",
        ),
    ],
)
def test_contradictory_settings_are_rejected(document: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(document)


def test_llama_is_causal_and_uses_relative_positions() -> None:
    torch.manual_seed(0)
    model = Llama(SHAPE, 100, 2).eval()
    hidden: list[torch.Tensor] = []
    model.final_norm.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    tokens = torch.randint(100, (1, 16))
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % 100
    model(tokens, tokens)
    model(changed, tokens)
    assert torch.allclose(hidden[0][0, :10], hidden[1][0, :10], atol=1e-6)
    assert not torch.allclose(hidden[0][0, 10:], hidden[1][0, 10:], atol=1e-3)
    same = torch.full((1, 16), 7)
    model(same, same)
    assert torch.allclose(hidden[2][0, 3], hidden[2][0, 12], atol=1e-5), "equal tokens at equal distances"


def test_sizes_of_the_llama_presets() -> None:
    assert feed_forward_width(2048) == 5632
    config = TrainingConfig.model_validate({"model": {"preset": "llama-1b"}}).model
    assert (config.is_llama, config.resolved_key_value_heads, config.head_channels) == (True, 4, 64)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Llama(config.shape, 32000, config.resolved_key_value_heads).parameters())
    assert parameters == pytest.approx(1.1e9, rel=0.01)


def test_automatic_precision_depends_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Tesla V100")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 0))
    assert choose_precision("auto", gpu).format == "fp16"
    assert choose_precision("fp32", gpu).format == "fp32"
    for wanted in ("bf16", "tf32"):
        with pytest.raises(ConfigurationError, match=f"Tesla V100 does not support {wanted}; set auto or fp16"):
            choose_precision(wanted, gpu)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    assert choose_precision("auto", gpu).format == "bf16"


def test_tf32_is_enabled_only_when_allowed() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for wanted, allowed in (("fp32", "highest"), ("tf32", "high"), ("bf16", "high")):
            Precision(wanted, "cuda").set_up_process()
            assert torch.get_float32_matmul_precision() == allowed
    finally:
        torch.set_float32_matmul_precision(before)
