"""Independent trainers: `python -m benchmarks.parity.peers NAME FOLDER`, with the peer's packages installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from benchmarks.parity.task import (
    GLOBAL_BATCH,
    MAX_GRADIENT_NORM,
    MICRO_BATCH,
    PEAK_RATE,
    STEPS,
    Result,
    Task,
    optimizer_of,
    rate_ratio,
)

ACCUMULATED = GLOBAL_BATCH // MICRO_BATCH


def plain(task: Task) -> tuple[Result, nn.Module]:
    """Train in a hand-written loop with undivided global batches."""
    model = task.model()
    optimizer = optimizer_of(model)
    losses, norms = [], []
    for step, (inputs, targets) in enumerate(task.batches()):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * rate_ratio(step)
        loss = model(inputs, targets)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM).item())
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Result(losses, norms), model


class _Named(nn.Module):
    """The model with the interface that HF Trainer expects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.model(inputs, labels)}


def hugging_face(task: Task) -> tuple[Result, nn.Module]:
    """Train with HF Trainer. It accumulates micro-batches, clips, and calls the scheduler after a step."""
    transformers: Any = import_module("transformers")
    model = task.model()
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_ratio)
    micro_losses: list[float] = []
    norms: list[float] = []

    class InOrder(transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            loss = super().compute_loss(*arguments, **named)
            micro_losses.append(loss.item())
            return loss

        def log(self, logs: dict[str, Any], *arguments: Any) -> None:
            if "grad_norm" in logs:
                norms.append(float(logs["grad_norm"]))
            super().log(logs, *arguments)

    arguments = transformers.TrainingArguments(
        output_dir="unused",
        max_steps=STEPS,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        max_grad_norm=MAX_GRADIENT_NORM,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=0,
        remove_unused_columns=False,
    )
    data = [{"inputs": inputs, "labels": targets} for inputs, targets in task.samples()]
    InOrder(_Named(model), arguments, train_dataset=data, optimizers=(optimizer, scheduler)).train()
    return Result(_means(micro_losses), norms), model


def lightning(task: Task) -> tuple[Result, nn.Module]:
    """Train with Lightning's Trainer. It accumulates micro-batches, clips, and calls the scheduler after a step."""
    package: Any = import_module("lightning")
    micro_losses: list[float] = []
    norms: list[float] = []

    class Module(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            loss: Tensor = self.model(*batch)
            micro_losses.append(loss.item())
            return loss

        def configure_gradient_clipping(self, optimizer: Any, **settings: Any) -> None:
            gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
            norms.append(nn.utils.get_total_norm(gradients).item())
            self.clip_gradients(optimizer, **settings)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = optimizer_of(self.model)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_ratio)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    module = Module()
    package.Trainer(
        accelerator="cpu",
        devices=1,
        precision="32-true",
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATED,
        gradient_clip_val=MAX_GRADIENT_NORM,
        gradient_clip_algorithm="norm",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, DataLoader(task.samples(), batch_size=MICRO_BATCH))  # type: ignore[arg-type]
    return Result(_means(micro_losses), norms), module.model


def _means(micro_losses: list[float]) -> list[float]:
    parts = [micro_losses[first : first + ACCUMULATED] for first in range(0, len(micro_losses), ACCUMULATED)]
    return [sum(part) / len(part) for part in parts]


PEERS: dict[str, Callable[[Task], tuple[Result, nn.Module]]] = {
    "plain PyTorch": plain,
    "HF Trainer": hugging_face,
    "Lightning": lightning,
}


def main(name: str, folder: Path) -> None:
    """Train with a peer, and write its result."""
    torch.set_num_threads(1)
    task = Task(**torch.load(folder / "task.pt", weights_only=True))
    result, model = PEERS[name](task)
    result.write(folder, name, model)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
