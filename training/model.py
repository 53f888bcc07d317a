"""The GPT: a pre-LayerNorm transformer decoder with tied embeddings, and nothing but its forward pass."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from training.config import ModelShape

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights, as in Radford et al. 2019."""


class Attention(nn.Module):
    """Causal self-attention over all heads at once."""

    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = dropout
        self.qkv = nn.Linear(shape.embedding, 3 * shape.embedding)
        self.out = nn.Linear(shape.embedding, shape.embedding)
        self.out_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each position with those before it. Shapes: x and the result [batch, sequence, embedding]."""
        batch, sequence, embedding = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, embedding // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        mixed = mixed.transpose(1, 2).reshape(batch, sequence, embedding)
        return cast(Tensor, self.out_dropout(self.out(mixed)))


class Block(nn.Module):
    """Attention, then a four times wider feed-forward network, each behind a LayerNorm and added to the stream."""

    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.embedding)
        self.attention = Attention(shape, dropout)
        self.feed_forward_norm = nn.LayerNorm(shape.embedding)
        self.expand = nn.Linear(shape.embedding, 4 * shape.embedding)
        self.contract = nn.Linear(4 * shape.embedding, shape.embedding)
        self.feed_forward_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Refine the stream. Shapes: x and the result [batch, sequence, embedding]."""
        x = x + self.attention(self.attention_norm(x))
        hidden = functional.gelu(self.expand(self.feed_forward_norm(x)), approximate="tanh")
        return cast(Tensor, x + self.feed_forward_dropout(self.contract(hidden)))


class GPT(nn.Module):
    """A decoder-only language model.

    Args:
        shape: layers, heads, channels and context.
        vocabulary_size: number of token ids.
        dropout: probability, in every block and on the embeddings.
        recomputes: whether blocks keep only their input, and are computed again for the backward pass.
    """

    def __init__(self, shape: ModelShape, vocabulary_size: int, dropout: float = 0.0, recomputes: bool = False) -> None:
        super().__init__()
        self._recomputes = recomputes
        self.shape = shape
        self.vocabulary_size = vocabulary_size
        self.token_embedding = nn.Embedding(vocabulary_size, shape.embedding)
        self.position_embedding = nn.Embedding(shape.context, shape.embedding)
        self.embedding_dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.final_norm = nn.LayerNorm(shape.embedding)
        self.head = nn.Linear(shape.embedding, vocabulary_size, bias=False)
        self.head.weight = self.token_embedding.weight
        self._initialise()

    def _initialise(self) -> None:
        # The two projections into the residual stream are scaled down by its depth, so that its variance at the
        # output does not grow with the number of blocks.
        residual_deviation = INITIAL_DEVIATION / math.sqrt(2 * self.shape.layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                into_stream = name.endswith((".attention.out", ".contract"))
                nn.init.normal_(module.weight, std=residual_deviation if into_stream else INITIAL_DEVIATION)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of all targets, in nats.

        The sum, not the mean: the caller divides by the tokens of the whole global batch, which no single
        micro-batch knows.

        Shapes:
            tokens, targets: [batch, sequence] int64, sequence at most the context. Result: scalar fp32.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding_dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self._recomputes and self.training else block(x)
        logits = self.head(self.final_norm(x))
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")

    def parameter_count(self) -> int:
        """Number of parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.parameters())
