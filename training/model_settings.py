"""Which model is trained: its architecture and its size."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from training.data_settings import FUNCTION_PATTERN
from training.settings_section import Section

OWN_CONTEXT = 1024
"""Tokens of a sequence for a model of one's own, unless said otherwise."""


class ModelShape(NamedTuple):
    """The four numbers that decide a GPT's size: blocks, attention heads, channels, tokens of context."""

    layers: int
    heads: int
    embedding: int
    context: int


PRESETS: dict[str, ModelShape] = {
    "demo": ModelShape(layers=4, heads=4, embedding=256, context=128),
    "gpt2": ModelShape(layers=12, heads=12, embedding=768, context=1024),
    "gpt2-medium": ModelShape(layers=24, heads=16, embedding=1024, context=1024),
    "gpt2-large": ModelShape(layers=36, heads=20, embedding=1280, context=1024),
    "gpt2-xl": ModelShape(layers=48, heads=25, embedding=1600, context=1024),
}
"""Named shapes. The gpt2 ones are those of Radford et al. 2019, table 2
(https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf, 2019-02;
head counts from the released models)."""


LLAMA_PRESETS: dict[str, tuple[ModelShape, int]] = {
    "llama-160m": (ModelShape(layers=12, heads=12, embedding=768, context=2048), 4),
    "llama-1b": (ModelShape(layers=22, heads=32, embedding=2048, context=2048), 4),
}
"""Named shapes, and their heads of keys and values. llama-1b is that of TinyLlama (Zhang et al. 2024,
https://arxiv.org/abs/2401.02385, section 2.2)."""


class ModelConfig(Section):
    """A model of your own, or the shape of the GPT: a preset, or all four of layers, heads, embedding and context."""

    function: str | None = Field(
        default=None,
        pattern=FUNCTION_PATTERN,
        description="`package.module:function` of your code that returns a torch.nn.Module whose forward takes a batch "
        "and returns its mean loss; null: a GPT. It is called with those of vocabulary_size and context (of tokens) "
        "that it names, and with the options.",
    )
    options: dict[str, Any] = Field(default={}, description="Further keyword arguments of the function.")
    architecture: Literal["gpt", "llama"] = Field(
        default="gpt",
        description="What the four numbers are of. gpt: LayerNorm, learned positions, GELU. llama: RMSNorm, rotary "
        "positions, SwiGLU. A preset names its own.",
    )
    preset: Literal["demo", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-160m", "llama-1b"] | None = Field(
        default=None, description="Named shape; give this or the four numbers. Neither means `demo`."
    )
    layers: int | None = Field(default=None, ge=1, le=512, description="Transformer blocks.")
    heads: int | None = Field(default=None, ge=1, le=512, description="Attention heads per block; divides embedding.")
    embedding: int | None = Field(default=None, ge=8, le=65536, description="Channels of the residual stream.")
    key_value_heads: int | None = Field(
        default=None,
        ge=1,
        le=512,
        description="Heads of keys and values of a llama, shared by its query heads; divides heads. null: as many as "
        "heads, or the preset's.",
    )
    context: int | None = Field(default=None, ge=2, le=1048576, description="Tokens that a sequence holds.")
    dropout: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="Dropout probability. 0: one pass over plenty of data does not overfit.",
    )

    @model_validator(mode="after")
    def _one_way_of_saying_the_shape(self) -> ModelConfig:
        given = {name: getattr(self, name) for name in ModelShape._fields if getattr(self, name) is not None}
        if self.function is not None:
            return self._without_a_shape(given)
        if self.preset is not None and given:
            raise ValueError(f"preset {self.preset!r} and {', '.join(given)} both say the shape; drop one of them")
        self._refuse_parts_of_the_other_architecture()
        if self.options:
            raise ValueError("options are for a function of your own; give it too, or drop them")
        missing = [name for name in ModelShape._fields if name not in given]
        if given and missing:
            raise ValueError(f"{', '.join(given)} given without {', '.join(missing)}; give all four, or a preset")
        if given and given["embedding"] % given["heads"]:
            raise ValueError(
                f"embedding {given['embedding']} is not a multiple of heads {given['heads']}; "
                "every head gets the same number of channels, so change one of the two"
            )
        return self

    def _refuse_parts_of_the_other_architecture(self) -> None:
        if self.preset is not None and self.architecture == "llama" and self.preset not in LLAMA_PRESETS:
            raise ValueError(f"preset {self.preset!r} is no llama; drop architecture, or take another preset")
        if self.key_value_heads is not None and not self.is_llama:
            raise ValueError(f"key_value_heads {self.key_value_heads} is of a llama, and this is a gpt; drop it")
        if self.is_llama and self.dropout:
            raise ValueError(f"dropout {self.dropout} is of a gpt; a llama has none, so drop it")
        if self.key_value_heads is not None and (self.heads or self.shape.heads) % self.key_value_heads:
            raise ValueError(
                f"heads {self.heads or self.shape.heads} is not a multiple of key_value_heads {self.key_value_heads}; "
                "each is shared by equally many query heads, so change one of the two"
            )

    def _without_a_shape(self, given: dict[str, int]) -> ModelConfig:
        others = [name for name in given if name != "context"]
        others += ["preset"] if self.preset is not None else []
        others += ["dropout"] if self.dropout else []
        others += ["architecture"] if self.architecture != "gpt" else []
        others += ["key_value_heads"] if self.key_value_heads is not None else []
        if others:
            raise ValueError(
                f"{', '.join(others)}: function {self.function!r} decides that itself; give it in options, or drop it"
            )
        return self

    @property
    def shape(self) -> ModelShape:
        """The four numbers, whichever way they were given; of a model of one's own only the context is known."""
        if self.function is not None:
            return ModelShape(0, 0, 0, self.context or OWN_CONTEXT)
        if self.layers is not None and self.heads is not None and self.embedding is not None:
            assert self.context is not None, "the validator wants all four"
            return ModelShape(self.layers, self.heads, self.embedding, self.context)
        if self.preset in LLAMA_PRESETS:
            return LLAMA_PRESETS[self.preset][0]
        return PRESETS[self.preset or "demo"]

    @property
    def is_llama(self) -> bool:
        """Whether the model is of the Llama kind."""
        return self.architecture == "llama" or self.preset in LLAMA_PRESETS

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        preset = LLAMA_PRESETS.get(self.preset or "", (self.shape, self.shape.heads))
        return self.key_value_heads or preset[1]

    @property
    def head_channels(self) -> int | None:
        """Channels of an attention head; None for a model of one's own, whose attention nobody knows."""
        return None if self.function is not None else self.shape.embedding // self.shape.heads
