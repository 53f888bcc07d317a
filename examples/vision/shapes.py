"""A custom dataset and model: classifies drawn circles, squares and triangles.

The images are generated, so there is no download. A file-based dataset would open its files in ``__getitem__``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

KINDS = ("circle", "square", "triangle")
NOISE = 0.3


class Shapes(Dataset[tuple[Tensor, int]]):
    """Grayscale images with one shape each, and the index of the shape's kind.

    Args:
        count: number of images.
        pixels: width and height of an image.
        augment: whether to rotate images, differently in every epoch.
    """

    def __init__(self, count: int, pixels: int, augment: bool) -> None:
        self._count, self._pixels, self._augment = count, pixels, augment

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        kind = number % len(KINDS)
        image = self._draw(KINDS[kind], torch.Generator().manual_seed(number))
        # The trainer seeds the random number generators for each sample, so a resumed run sees the same noise.
        image = image + NOISE * torch.randn(image.shape)
        if self._augment:
            image = torch.rot90(image, int(torch.randint(4, ())), (1, 2))
        return image, kind

    def _draw(self, kind: str, generator: torch.Generator) -> Tensor:
        """Return an image. Shape: [1, pixels, pixels]."""
        size = float(torch.empty(()).uniform_(0.2, 0.4, generator=generator))
        center = torch.empty(2).uniform_(size, 1 - size, generator=generator)
        axis = (torch.arange(self._pixels) + 0.5) / self._pixels
        down, right = axis[:, None] - center[0], axis[None, :] - center[1]
        if kind == "circle":
            inside = down**2 + right**2 < size**2
        elif kind == "square":
            inside = torch.maximum(down.abs().expand(-1, self._pixels), right.abs()) < 0.8 * size
        else:
            inside = (down < size / 2) & (down > 2 * right.abs() - size)
        return inside.float()[None]


class Classifier(nn.Module):
    """Three convolutions, global average pooling, and a linear layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * channels, 4 * channels, 3, padding=1),
            nn.ReLU(),
        )
        self.output = nn.Linear(4 * channels, len(KINDS))

    def forward(self, images: Tensor, kinds: Tensor) -> Tensor:
        """Return the mean loss of a batch. Shapes: images [batch, 1, pixels, pixels]; kinds [batch] int64."""
        features = self.convolutions(images).mean((2, 3))
        return functional.cross_entropy(self.output(features), kinds)


def dataset(split: str, directory: Path, images: int = 3000, pixels: int = 24) -> Shapes:
    """Return a split's dataset. ``directory`` contains the staged files; this example generates its images instead."""
    if split == "train":
        return Shapes(images, pixels, augment=True)
    return Shapes(images // 10, pixels, augment=False)


def model(channels: int = 16) -> Classifier:
    """Return the model."""
    return Classifier(channels)
