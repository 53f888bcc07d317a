"""A decoder of the Llama kind: RMSNorm, rotary positions, SwiGLU, and queries that share keys and values."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from training.config import ModelShape

INITIAL_DEVIATION = 0.02
ROTARY_BASE = 10000.0
"""Su et al. 2021, section 3.2.2 (https://arxiv.org/abs/2104.09864)."""
NORM_EPSILON = 1e-5
WIDTH_MULTIPLE = 256


def feed_forward_width(embedding: int) -> int:
    """Channels within the feed-forward network: 8/3 of the stream's, rounded up to what tensor cores like.

    Three matrices of that width have as many parameters as two of four times the stream's (Touvron et al. 2023,
    https://arxiv.org/abs/2302.13971, section 2.2).
    """
    multiple = min(WIDTH_MULTIPLE, embedding)
    return math.ceil(embedding * 8 / 3 / multiple) * multiple


def rotary_angles(context: int, head_channels: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine by which pairs of channels are turned. Shapes: each [context, head_channels / 2]."""
    rates = ROTARY_BASE ** (-torch.arange(0, head_channels, 2, dtype=torch.float64) / head_channels)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), rates)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn channel i with channel i + half by its position's angle. Shapes: x and result [..., context, channels]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).type_as(x)


class Attention(nn.Module):
    """Causal self-attention, several query heads to each head of keys and values."""

    def __init__(self, shape: ModelShape, key_value_heads: int) -> None:
        super().__init__()
        channels = shape.embedding // shape.heads
        self.heads, self.key_value_heads, self.channels = shape.heads, key_value_heads, channels
        self.query = nn.Linear(shape.embedding, shape.heads * channels, bias=False)
        self.key_value = nn.Linear(shape.embedding, 2 * key_value_heads * channels, bias=False)
        self.out = nn.Linear(shape.heads * channels, shape.embedding, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Mix each position with those before it. Shapes: x and the result [batch, sequence, embedding]."""
        batch, sequence, _ = x.shape
        query = self.query(x).view(batch, sequence, self.heads, self.channels).transpose(1, 2)
        both = self.key_value(x).view(batch, sequence, 2, self.key_value_heads, self.channels).permute(2, 0, 3, 1, 4)
        query, key = rotate(query, cosine, sine), rotate(both[0], cosine, sine)
        shared = self.heads // self.key_value_heads
        # Repeating works with every kernel; the memory it takes is small beside the feed-forward network's.
        key, value = key.repeat_interleave(shared, dim=1), both[1].repeat_interleave(shared, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast(Tensor, self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1)))


class Block(nn.Module):
    """Attention, then a gated feed-forward network, each behind an RMSNorm and added to the stream."""

    def __init__(self, shape: ModelShape, key_value_heads: int) -> None:
        super().__init__()
        width = feed_forward_width(shape.embedding)
        self.attention_norm = nn.RMSNorm(shape.embedding, eps=NORM_EPSILON)
        self.attention = Attention(shape, key_value_heads)
        self.feed_forward_norm = nn.RMSNorm(shape.embedding, eps=NORM_EPSILON)
        self.gate_and_expand = nn.Linear(shape.embedding, 2 * width, bias=False)
        self.contract = nn.Linear(width, shape.embedding, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Refine the stream. Shapes: x and the result [batch, sequence, embedding]."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        gate, hidden = self.gate_and_expand(self.feed_forward_norm(x)).chunk(2, dim=-1)
        return cast(Tensor, x + self.contract(functional.silu(gate) * hidden))


class Llama(nn.Module):
    """A decoder-only language model of the Llama kind, with a head of its own.

    Args:
        shape: layers, heads, channels and context.
        vocabulary_size: number of token ids.
        key_value_heads: heads of keys and values; divides the shape's heads.
        recomputes: whether blocks keep only their input, and are computed again for the backward pass.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(
        self, shape: ModelShape, vocabulary_size: int, key_value_heads: int | None = None, recomputes: bool = False
    ) -> None:
        super().__init__()
        self.shape = shape
        self._recomputes = recomputes
        self.token_embedding = nn.Embedding(vocabulary_size, shape.embedding)
        self.blocks = nn.ModuleList(Block(shape, key_value_heads or shape.heads) for _ in range(shape.layers))
        self.final_norm = nn.RMSNorm(shape.embedding, eps=NORM_EPSILON)
        self.head = nn.Linear(shape.embedding, vocabulary_size, bias=False)
        cosine, sine = rotary_angles(shape.context, shape.embedding // shape.heads)
        # Not in checkpoints: they follow from the shape.
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        residual_deviation = INITIAL_DEVIATION / math.sqrt(2 * self.shape.layers)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                into_stream = name.endswith((".attention.out", ".contract"))
                nn.init.normal_(module.weight, std=residual_deviation if into_stream else INITIAL_DEVIATION)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of all targets, in nats.

        Shapes:
            tokens, targets: [batch, sequence] int64, sequence at most the context. Result: scalar fp32.
        """
        x = self.token_embedding(tokens)
        cosine, sine = self.cosine[: tokens.shape[1]], self.sine[: tokens.shape[1]]
        for block in self.blocks:
            if self._recomputes and self.training:
                x = checkpoint(block, x, cosine, sine, use_reentrant=False)
            else:
                x = block(x, cosine, sine)
        logits = self.head(self.final_norm(x))
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
