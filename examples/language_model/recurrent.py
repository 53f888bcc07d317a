"""A custom model on a token dataset: a recurrent network instead of a GPT."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Recurrent(nn.Module):
    """An LSTM over token embeddings."""

    def __init__(self, vocabulary_size: int, channels: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, channels)
        self.lstm = nn.LSTM(channels, channels, layers, batch_first=True)
        self.head = nn.Linear(channels, vocabulary_size, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch. Shapes: tokens, targets [batch, sequence_length] int64."""
        hidden, _ = self.lstm(self.embedding(tokens))
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def model(vocabulary_size: int, channels: int = 256, layers: int = 2) -> Recurrent:
    """Return the model; ``vocabulary_size`` comes from the dataset, the other arguments from `model.options`."""
    return Recurrent(vocabulary_size, channels, layers)
