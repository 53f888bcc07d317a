"""Llama: a transformer decoder with RMSNorm, rotary positions, SwiGLU, and grouped-query attention."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from training.config import ModelShape
from training.models.key_value_cache import KeyValueCache, LayerCache

INITIAL_DEVIATION = 0.02
ROTARY_BASE = 10000.0
"""Base of the rotary angles: Su et al. 2021, section 3.2.2 (https://arxiv.org/abs/2104.09864)."""
NORM_EPSILON = 1e-5
WIDTH_MULTIPLE = 256


def feed_forward_width(embedding: int) -> int:
    """Return the feed-forward network's width: 8/3 of the embedding, rounded up for tensor cores.

    Three such matrices have as many parameters as two matrices four times as wide as the embedding (Touvron et al.
    2023, https://arxiv.org/abs/2302.13971, section 2.2).
    """
    multiple = min(WIDTH_MULTIPLE, embedding)
    return math.ceil(embedding * 8 / 3 / multiple) * multiple


def rotary_angles(sequence_length: int, head_channels: int) -> tuple[Tensor, Tensor]:
    """Return the cosine and sine of the rotation angles. Shapes: each [sequence_length, head_channels / 2]."""
    rates = ROTARY_BASE ** (-torch.arange(0, head_channels, 2, dtype=torch.float64) / head_channels)
    angles = torch.outer(torch.arange(sequence_length, dtype=torch.float64), rates)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate channels i and i + half by the angle of the position. Shapes: x and result [..., sequence, channels]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).type_as(x)


class Attention(nn.Module):
    """Causal grouped-query self-attention."""

    def __init__(self, shape: ModelShape, num_key_value_heads: int) -> None:
        super().__init__()
        channels = shape.hidden_size // shape.num_attention_heads
        self.heads, self.channels = shape.num_attention_heads, channels
        self.num_key_value_heads = num_key_value_heads
        self.query = nn.Linear(shape.hidden_size, shape.num_attention_heads * channels, bias=False)
        self.key_value = nn.Linear(shape.hidden_size, 2 * num_key_value_heads * channels, bias=False)
        self.out = nn.Linear(shape.num_attention_heads * channels, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Attend from each position to itself and earlier ones. Shapes: x and result [batch, sequence, embedding]."""
        batch, sequence, _ = x.shape
        query = self.query(x).view(batch, sequence, self.heads, self.channels).transpose(1, 2)
        both = self.key_value(x).view(batch, sequence, 2, self.num_key_value_heads, self.channels)
        both = both.permute(2, 0, 3, 1, 4)
        query, key, value, is_causal = rotate(query, cosine, sine), rotate(both[0], cosine, sine), both[1], True
        if cache is not None:
            key, value, is_causal = cache.extend(key, value)
        shared = self.heads // self.num_key_value_heads
        # Repeating keys and values works with every kernel, and needs little memory compared with the feed-forward
        # network.
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        return cast(Tensor, self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1)))


class Block(nn.Module):
    """Attention, then a gated feed-forward network, each with RMSNorm and a residual connection."""

    def __init__(self, shape: ModelShape, num_key_value_heads: int) -> None:
        super().__init__()
        width = feed_forward_width(shape.hidden_size)
        self.attention_norm = nn.RMSNorm(shape.hidden_size, eps=NORM_EPSILON)
        self.attention = Attention(shape, num_key_value_heads)
        self.feed_forward_norm = nn.RMSNorm(shape.hidden_size, eps=NORM_EPSILON)
        self.gate_and_expand = nn.Linear(shape.hidden_size, 2 * width, bias=False)
        self.contract = nn.Linear(width, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Apply the block. Shapes: x and result [batch, sequence, embedding]."""
        x = x + self.attention(self.attention_norm(x), cosine, sine, cache)
        gate, hidden = self.gate_and_expand(self.feed_forward_norm(x)).chunk(2, dim=-1)
        return cast(Tensor, x + self.contract(functional.silu(gate) * hidden))


class Llama(nn.Module):
    """A decoder-only language model; its output head is not tied to the embedding.

    Args:
        shape: number of layers, heads and channels, and the sequence length.
        vocabulary_size: number of token ids.
        num_key_value_heads: number of key and value heads, a divisor of the number of attention heads.
        recomputes: True to use activation checkpointing, which keeps only each block's input and recomputes the block
            in the backward pass.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(
        self, shape: ModelShape, vocabulary_size: int, num_key_value_heads: int | None = None, recomputes: bool = False
    ) -> None:
        super().__init__()
        self.shape = shape
        self._recomputes = recomputes
        self.token_embedding = nn.Embedding(vocabulary_size, shape.hidden_size)
        key_value_heads = num_key_value_heads or shape.num_attention_heads
        self.blocks = nn.ModuleList(Block(shape, key_value_heads) for _ in range(shape.num_hidden_layers))
        self.final_norm = nn.RMSNorm(shape.hidden_size, eps=NORM_EPSILON)
        self.head = nn.Linear(shape.hidden_size, vocabulary_size, bias=False)
        cosine, sine = rotary_angles(shape.sequence_length, shape.hidden_size // shape.num_attention_heads)
        # Checkpoints do not include the angles, because they are computed from the shape.
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        residual_deviation = INITIAL_DEVIATION / math.sqrt(2 * self.shape.num_hidden_layers)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                into_stream = name.endswith((".attention.out", ".contract"))
                nn.init.normal_(module.weight, std=residual_deviation if into_stream else INITIAL_DEVIATION)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of all targets, in nats, ignoring targets of NO_TARGET.

        Shapes:
            tokens, targets: [batch, sequence] int64, with sequence at most ``shape.sequence_length``. Result: scalar
            fp32.
        """
        return functional.cross_entropy(self.logits(tokens).float().flatten(0, 1), targets.flatten())

    def logits(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Return each position's scores for the next token.

        Args:
            tokens: tokens of the text or, with a cache, those that it does not have yet.
            cache: keys and values of the tokens before ``tokens``, to which this call adds its own.

        Shapes:
            tokens: [batch, sequence] int64, with at most ``shape.sequence_length`` tokens of the text. Result: [batch,
            sequence, vocabulary_size].
        """
        x = self.token_embedding(tokens)
        first = 0 if cache is None else cache.length
        cosine, sine = (each[first : first + tokens.shape[1]] for each in (self.cosine, self.sine))
        for number, block in enumerate(self.blocks):
            if cache is not None:
                x = block(x, cosine, sine, cache.layers[number])
            elif self._recomputes and self.training:
                x = checkpoint(block, x, cosine, sine, use_reentrant=False)
            else:
                x = block(x, cosine, sine)
        return cast(Tensor, self.head(self.final_norm(x)))
