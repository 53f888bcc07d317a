"""GPT: a pre-LayerNorm transformer decoder with tied embeddings."""

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
"""Standard deviation of the initial weights, as in Radford et al. 2019."""


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        self.heads = shape.num_attention_heads
        self.dropout = dropout
        self.qkv = nn.Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.out_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Attend from each position to itself and earlier ones. Shapes: x and result [batch, sequence, embedding]."""
        batch, sequence, embedding = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, embedding // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        is_causal = True
        if cache is not None:
            key, value, is_causal = cache.extend(key, value)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, dropout_p=self.dropout if self.training else 0.0
        )
        mixed = mixed.transpose(1, 2).reshape(batch, sequence, embedding)
        return cast(Tensor, self.out_dropout(self.out(mixed)))


class Block(nn.Module):
    """Attention, then a feed-forward network four times as wide, each with LayerNorm and a residual connection."""

    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.hidden_size)
        self.attention = Attention(shape, dropout)
        self.feed_forward_norm = nn.LayerNorm(shape.hidden_size)
        self.expand = nn.Linear(shape.hidden_size, 4 * shape.hidden_size)
        self.contract = nn.Linear(4 * shape.hidden_size, shape.hidden_size)
        self.feed_forward_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Apply the block. Shapes: x and result [batch, sequence, embedding]."""
        x = x + self.attention(self.attention_norm(x), cache)
        hidden = functional.gelu(self.expand(self.feed_forward_norm(x)), approximate="tanh")
        return cast(Tensor, x + self.feed_forward_dropout(self.contract(hidden)))


class GPT(nn.Module):
    """A decoder-only language model.

    Args:
        shape: number of layers, heads and channels, and the sequence length.
        vocabulary_size: number of token ids.
        dropout: dropout probability in every block and on the embeddings.
        recomputes: True to use activation checkpointing, which keeps only each block's input and recomputes the block
            in the backward pass.
    """

    def __init__(self, shape: ModelShape, vocabulary_size: int, dropout: float = 0.0, recomputes: bool = False) -> None:
        super().__init__()
        self._recomputes = recomputes
        self.shape = shape
        self.vocabulary_size = vocabulary_size
        self.token_embedding = nn.Embedding(vocabulary_size, shape.hidden_size)
        self.position_embedding = nn.Embedding(shape.sequence_length, shape.hidden_size)
        self.embedding_dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.num_hidden_layers))
        self.final_norm = nn.LayerNorm(shape.hidden_size)
        self.head = nn.Linear(shape.hidden_size, vocabulary_size, bias=False)
        self.head.weight = self.token_embedding.weight
        self._initialise()

    def _initialise(self) -> None:
        # Scale down the two projections into the residual stream in deeper models, so that the variance at the output
        # does not grow with the number of blocks.
        residual_deviation = INITIAL_DEVIATION / math.sqrt(2 * self.shape.num_hidden_layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                into_stream = name.endswith((".attention.out", ".contract"))
                nn.init.normal_(module.weight, std=residual_deviation if into_stream else INITIAL_DEVIATION)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)

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
        first = 0 if cache is None else cache.length
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        x = self.embedding_dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for number, block in enumerate(self.blocks):
            if cache is not None:
                x = block(x, cache.layers[number])
            else:
                x = checkpoint(block, x, use_reentrant=False) if self._recomputes and self.training else block(x)
        return cast(Tensor, self.head(self.final_norm(x)))

    def parameter_count(self) -> int:
        """Return the number of parameters, counting tied parameters once."""
        return sum(parameter.numel() for parameter in self.parameters())
