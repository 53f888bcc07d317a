"""A run with only the parts that one optimizer step uses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from training.checkpoint.state.training_state import TrainingState
from training.config import ModelShape, TrainingConfig
from training.data.batches import TrainBatches
from training.data.dataset import open_dataset
from training.data.samples import Windows
from training.process.distributed import Gang
from training.process.precision import Precision
from training.process.replication import Replica

SHAPE = ModelShape(num_hidden_layers=2, num_attention_heads=2, hidden_size=32, sequence_length=32)


def fake_run(gang: Gang, dataset: Path, state: TrainingState, micro_batch_size: int = 8) -> Any:
    """Return a run that takes steps of 8 sequences with this state, whose model has SHAPE."""
    config = TrainingConfig.model_validate(
        {"global_batch_size": 8, "micro_batch_size": micro_batch_size, "model": SHAPE._asdict()}
    )
    return SimpleNamespace(
        config=config,
        gang=gang,
        state=state,
        model=state.model,
        parameters=list(state.model.parameters()),
        replica=Replica(state.model, gang, config.parallel),
        micro_batch_size=micro_batch_size,
        is_gated=False,
        buffers=None,
        precision=Precision("fp32", "cpu"),
        writer=SimpleNamespace(before_update=lambda: None),
        train_batches=TrainBatches(Windows(open_dataset(dataset).split("train"), 32), 1, gang.device, 8),
    )
