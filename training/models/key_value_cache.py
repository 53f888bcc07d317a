"""Keys and values of the tokens that a decoder has already computed, for text generation."""

from __future__ import annotations

from torch import Tensor


class LayerCache:
    """The keys and values of one attention layer.

    Args:
        capacity: greatest number of tokens.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.length = 0

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Add tokens; return all keys and values so far, and whether the attention needs a causal mask.

        The first call adds any number of tokens, and needs the mask. Each later call adds one token, which attends to
        all tokens.

        Shapes:
            key, value: [batch, heads, new tokens, channels]. Result: [batch, heads, all tokens, channels].
        """
        is_first, end = self.length == 0, self.length + key.shape[2]
        assert is_first or key.shape[2] == 1, "one token at a time after the first call"
        assert end <= self._capacity, "the text fits the cache"
        if self._keys is None or self._values is None:
            batch, heads, _, channels = key.shape
            self._keys = key.new_empty(batch, heads, self._capacity, channels)
            self._values = value.new_empty(batch, heads, self._capacity, channels)
        self._keys[:, :, self.length : end] = key
        self._values[:, :, self.length : end] = value
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end], is_first


class KeyValueCache:
    """The caches of all attention layers, from the first to the last.

    Args:
        num_layers: number of layers.
        capacity: greatest number of tokens of the text.
    """

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.layers[-1].length
