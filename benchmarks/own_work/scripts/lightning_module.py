"""A classifier trained with Lightning: dropout, random augmentation in worker processes, a scheduler and validation."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    """Points in a square with added noise, and whether they are inside a ring."""

    def __init__(self, count):
        self.points = 2 * torch.rand(count, 2, generator=torch.Generator().manual_seed(count)) - 1

    def __len__(self):
        return len(self.points)

    def __getitem__(self, number):
        radius = self.points[number].norm()
        return self.points[number] + 0.01 * torch.randn(2), ((radius > 0.4) & (radius < 0.8)).float()


class Classifier(lightning.LightningModule):
    """A small network."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, points):
        return self.network(points)[:, 0]

    def training_step(self, batch, _):
        return nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("loss", nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)]


if __name__ == "__main__":
    lightning.seed_everything(7)
    torch.set_num_threads(1)
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        max_epochs=4,
        accumulate_grad_batches=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    loader = DataLoader(Points(80), batch_size=4, shuffle=True, num_workers=2)
    trainer.fit(model, loader, DataLoader(Points(16), batch_size=8))
