"""Model settings: architecture and size, or a custom model."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from training.config.data import FUNCTION_PATTERN
from training.config.section import NEW_RUN, Section

CUSTOM_SEQUENCE_LENGTH = 1024
"""Default sequence length of a custom model, in tokens."""


class ModelShape(NamedTuple):
    """A transformer's size: blocks, attention heads, channels and tokens per sequence."""

    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    sequence_length: int


PRESETS: dict[str, ModelShape] = {
    "demo": ModelShape(num_hidden_layers=4, num_attention_heads=4, hidden_size=256, sequence_length=128),
    "gpt2": ModelShape(num_hidden_layers=12, num_attention_heads=12, hidden_size=768, sequence_length=1024),
    "gpt2-medium": ModelShape(num_hidden_layers=24, num_attention_heads=16, hidden_size=1024, sequence_length=1024),
    "gpt2-large": ModelShape(num_hidden_layers=36, num_attention_heads=20, hidden_size=1280, sequence_length=1024),
    "gpt2-xl": ModelShape(num_hidden_layers=48, num_attention_heads=25, hidden_size=1600, sequence_length=1024),
}
"""Named shapes. The gpt2 shapes are from Radford et al. 2019, table 2
(https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf, 2019-02;
head counts from the released models)."""


LLAMA_PRESETS: dict[str, tuple[ModelShape, int]] = {
    "llama-160m": (ModelShape(num_hidden_layers=12, num_attention_heads=12, hidden_size=768, sequence_length=2048), 4),
    "llama-1b": (ModelShape(num_hidden_layers=22, num_attention_heads=32, hidden_size=2048, sequence_length=2048), 4),
}
"""Named shapes, each with its number of key and value heads. llama-1b is TinyLlama (Zhang et al. 2024,
https://arxiv.org/abs/2401.02385, section 2.2)."""


class ModelConfig(Section):
    """A custom model, or a GPT or Llama defined by a preset or by all four size keys."""

    function: str | None = Field(
        default=None,
        pattern=FUNCTION_PATTERN,
        description="`package.module:function` in your code that returns a `torch.nn.Module` whose forward takes a "
        "batch and returns its mean loss; `null`: a GPT or Llama. It is called with the options, and with "
        "`vocabulary_size` and `sequence_length` if it has parameters with these names.",
    )
    options: dict[str, Any] = Field(default={}, description="Additional keyword arguments for the function.")
    architecture: Literal["gpt", "llama"] = Field(
        default="gpt",
        description="Architecture for the size keys. `gpt`: LayerNorm, learned positions, GELU. `llama`: RMSNorm, "
        "rotary positions, SwiGLU. A preset implies its architecture.",
        json_schema_extra=NEW_RUN,
    )
    preset: Literal["demo", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-160m", "llama-1b"] | None = Field(
        default=None,
        description="Named shape, which replaces the four size keys. If neither this key nor a size key is set, the "
        "shape is `demo`.",
        json_schema_extra=NEW_RUN,
    )
    num_hidden_layers: int | None = Field(
        default=None, ge=1, le=512, description="Number of transformer blocks.", json_schema_extra=NEW_RUN
    )
    num_attention_heads: int | None = Field(
        default=None,
        ge=1,
        le=512,
        description="Number of attention heads per block; it must divide `hidden_size`.",
        json_schema_extra=NEW_RUN,
    )
    hidden_size: int | None = Field(
        default=None, ge=8, le=65536, description="Channels in the residual stream.", json_schema_extra=NEW_RUN
    )
    num_key_value_heads: int | None = Field(
        default=None,
        ge=1,
        le=512,
        description="Number of key and value heads in a Llama (grouped-query attention); it must divide "
        "`num_attention_heads`. `null`: the preset's value, or `num_attention_heads`.",
        json_schema_extra=NEW_RUN,
    )
    sequence_length: int | None = Field(
        default=None, ge=2, le=1048576, description="Tokens per sequence.", json_schema_extra=NEW_RUN
    )
    dropout: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="Dropout probability. Dropout is not necessary for a single pass over a large dataset.",
    )

    @model_validator(mode="after")
    def _check_shape_given_once(self) -> ModelConfig:
        given = {name: getattr(self, name) for name in ModelShape._fields if getattr(self, name) is not None}
        if self.function is not None:
            return self._check_custom_model(given)
        if self.preset is not None and given:
            raise ValueError(f"preset {self.preset!r} and {', '.join(given)} both define the shape; remove one of them")
        self._check_architecture()
        if self.options:
            raise ValueError("options requires a custom model; set function, or remove options")
        missing = [name for name in ModelShape._fields if name not in given]
        if given and missing:
            raise ValueError(f"{', '.join(given)} set without {', '.join(missing)}; set all four or a preset")
        if given and given["hidden_size"] % given["num_attention_heads"]:
            raise ValueError(
                f"hidden_size {given['hidden_size']} is not a multiple of num_attention_heads "
                f"{given['num_attention_heads']}; every head has the same number of channels; change one of the two"
            )
        return self

    def _check_architecture(self) -> None:
        if self.preset is not None and self.architecture == "llama" and self.preset not in LLAMA_PRESETS:
            raise ValueError(f"preset {self.preset!r} is not a llama; remove architecture, or use another preset")
        if self.num_key_value_heads is not None and not self.is_llama:
            raise ValueError(f"num_key_value_heads {self.num_key_value_heads} applies to llama only; remove it")
        if self.is_llama and self.dropout:
            raise ValueError(f"dropout {self.dropout} applies to gpt only; remove it")
        heads = self.num_attention_heads or self.shape.num_attention_heads
        if self.num_key_value_heads is not None and heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {heads} is not a multiple of num_key_value_heads {self.num_key_value_heads}; "
                "each serves the same number of query heads; change one of the two"
            )

    def _check_custom_model(self, given: dict[str, int]) -> ModelConfig:
        others = [name for name in given if name != "sequence_length"]
        others += ["preset"] if self.preset is not None else []
        others += ["dropout"] if self.dropout else []
        others += ["architecture"] if self.architecture != "gpt" else []
        others += ["num_key_value_heads"] if self.num_key_value_heads is not None else []
        if others:
            raise ValueError(
                f"{', '.join(others)}: not used with function {self.function!r}; pass it in options, or remove it"
            )
        return self

    @property
    def shape(self) -> ModelShape:
        """The shape given by the preset or the size keys. A custom model has only sequence_length."""
        if self.function is not None:
            return ModelShape(0, 0, 0, self.sequence_length or CUSTOM_SEQUENCE_LENGTH)
        if self.num_hidden_layers is not None and self.num_attention_heads is not None and self.hidden_size is not None:
            assert self.sequence_length is not None, "the validator requires all four"
            return ModelShape(self.num_hidden_layers, self.num_attention_heads, self.hidden_size, self.sequence_length)
        if self.preset in LLAMA_PRESETS:
            return LLAMA_PRESETS[self.preset][0]
        return PRESETS[self.preset or "demo"]

    @property
    def is_llama(self) -> bool:
        """True if the model is a Llama."""
        return self.architecture == "llama" or self.preset in LLAMA_PRESETS

    @property
    def resolved_key_value_heads(self) -> int:
        """Number of key and value heads."""
        preset = LLAMA_PRESETS.get(self.preset or "", (self.shape, self.shape.num_attention_heads))
        return self.num_key_value_heads or preset[1]

    @property
    def head_channels(self) -> int | None:
        """Channels per attention head, or None for a custom model."""
        return None if self.function is not None else self.shape.hidden_size // self.shape.num_attention_heads
