"""Runs with transformers and lightning. Prints why settings are rejected, and the classes of unwrapped optimizers."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from accelerate import Accelerator
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from training.checkpoint.state.optimizer import bare_optimizer
from training.errors import ConfigurationError
from training.integrations.hugging_face import resume_folder
from training.integrations.lightning import CheckpointCallback


class Two(lightning.LightningModule):
    """A module with two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:
        raise AssertionError("must be rejected before the first step")

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.layers]


def main() -> None:
    settings = TrainingArguments(
        output_dir="out", save_strategy="no", ignore_data_skip=True, use_cpu=True, report_to=[]
    )
    try:
        resume_folder(Trainer(nn.Linear(2, 2), settings, train_dataset=[]))
    except ConfigurationError as error:
        print("\n".join(error.problems))
    trainer = lightning.Trainer(
        accelerator="cpu", callbacks=[CheckpointCallback()], logger=False, enable_checkpointing=False, max_steps=1
    )
    try:
        trainer.fit(Two(), DataLoader(torch.zeros(2, 2)))
    except ConfigurationError as error:
        print("\n".join(error.problems))
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    wrapped = [Accelerator(cpu=True).prepare(optimizer), LightningOptimizer(optimizer)]
    assert all(type(each) is not torch.optim.AdamW and bare_optimizer(each) is optimizer for each in wrapped)
    print(*(type(bare_optimizer(each)).__name__ for each in wrapped))


if __name__ == "__main__":
    main()
