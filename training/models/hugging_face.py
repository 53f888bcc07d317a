"""Converts weights and configurations between this project's layout and that of Hugging Face's transformers.

Sources (transformers 5.24.0, 2026-11):
    https://github.com/huggingface/transformers/blob/main/src/transformers/models/gpt2/modeling_gpt2.py
    https://github.com/huggingface/transformers/blob/main/src/transformers/models/llama/modeling_llama.py
    https://huggingface.co/docs/transformers/model_doc/gpt2, ``GPT2Config``
    https://huggingface.co/docs/transformers/model_doc/llama, ``LlamaConfig``

GPT-2 stores the weights of attention and feed-forward layers in ``Conv1D`` modules, as [inputs, outputs]: the transpose
of ``nn.Linear``. Llama has separate query, key, value, gate and up projections. Both models rotate or split channels as
in this project, so the order of rows does not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from training.config import ModelConfig
from training.errors import ConfigurationError
from training.models.llama import NORM_EPSILON, ROTARY_BASE, feed_forward_width

GPT_NORM_EPSILON = 1e-5
"""Default of ``nn.LayerNorm``."""
TANH_GELU = ("gelu_new", "gelu_pytorch_tanh")
"""Names of the tanh approximation of GELU.
Source: https://github.com/huggingface/transformers/blob/main/src/transformers/activations.py (2026-11)."""
PREFIXES = ("transformer.", "model.")
"""Names of the decoder in a model with a head. Some published files have the decoder's tensors without this prefix."""
NOT_WEIGHTS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Constant buffers in files that earlier releases of transformers wrote."""
GPT_BLOCK = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "expand": "mlp.c_fc",
    "contract": "mlp.c_proj",
}
LLAMA_BLOCK = {
    "attention_norm": ("input_layernorm",),
    "attention.query": ("self_attn.q_proj",),
    "attention.key_value": ("self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "feed_forward_norm": ("post_attention_layernorm",),
    "gate_and_expand": ("mlp.gate_proj", "mlp.up_proj"),
    "contract": ("mlp.down_proj",),
}


class Weight(NamedTuple):
    """One tensor of a model: its name here, and the tensors in transformers that correspond to it.

    Attributes:
        own: name in this project.
        theirs: names in transformers, without the decoder's prefix; equal parts along the first dimension.
        is_transposed: True if the tensor belongs to a ``Conv1D``.
    """

    own: str
    theirs: tuple[str, ...]
    is_transposed: bool = False


def weights_of(config: ModelConfig) -> Iterator[Weight]:
    """Yield a GPT's or Llama's tensors, except the output head."""
    if config.is_llama:
        yield Weight("token_embedding.weight", ("embed_tokens.weight",))
        for number in range(config.shape.num_hidden_layers):
            for own, theirs in LLAMA_BLOCK.items():
                yield Weight(
                    f"blocks.{number}.{own}.weight", tuple(f"layers.{number}.{each}.weight" for each in theirs)
                )
        yield Weight("final_norm.weight", ("norm.weight",))
        return
    yield Weight("token_embedding.weight", ("wte.weight",))
    yield Weight("position_embedding.weight", ("wpe.weight",))
    for number in range(config.shape.num_hidden_layers):
        for own, other in GPT_BLOCK.items():
            is_transposed = not own.endswith("_norm")
            yield Weight(f"blocks.{number}.{own}.weight", (f"h.{number}.{other}.weight",), is_transposed)
            yield Weight(f"blocks.{number}.{own}.bias", (f"h.{number}.{other}.bias",))
    yield Weight("final_norm.weight", ("ln_f.weight",))
    yield Weight("final_norm.bias", ("ln_f.bias",))


def to_hugging_face(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's weights under the names of transformers. The head is included, even if it is tied.

    Args:
        config: the model's settings.
        state: the model's ``state_dict``.
    """
    prefix = "model." if config.is_llama else "transformer."
    tensors = {"lm_head.weight": state["head.weight"].clone()}
    for weight in weights_of(config):
        for name, piece in zip(weight.theirs, state[weight.own].chunk(len(weight.theirs)), strict=True):
            tensors[prefix + name] = (piece.T if weight.is_transposed else piece).contiguous()
    return tensors


def from_hugging_face(
    config: ModelConfig, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """Return weights under this project's names, in the shapes of ``wanted``.

    A GPT's position embeddings may have more rows than the model; the first rows are used.

    Args:
        config: the model's settings.
        given: tensors under the names of transformers.
        wanted: the model's ``state_dict``.
        source: origin of the tensors, for messages.

    Raises:
        ConfigurationError: Tensors are missing, unknown or have other shapes; the message lists all of them.
    """
    bare = {_bare(name): tensor for name, tensor in given.items() if not NOT_WEIGHTS.fullmatch(_bare(name))}
    problems, state = [], {}
    for weight in weights_of(config):
        missing = [name for name in weight.theirs if name not in bare]
        if missing:
            problems += [f"{source}: does not have the tensor {name}" for name in missing]
            continue
        pieces = [bare.pop(name) for name in weight.theirs]
        try:
            state[weight.own] = torch.cat([each.T if weight.is_transposed else each for each in pieces])
        except (RuntimeError, IndexError):
            problems.append(f"{source}: {', '.join(weight.theirs)} have shapes that do not match each other")
    head = bare.pop("lm_head.weight", None)
    embedding = state.get("token_embedding.weight")
    if config.is_llama and head is None:
        problems.append(f"{source}: does not have the tensor lm_head.weight; the run's Llama has a separate head")
    elif not config.is_llama and head is not None and embedding is not None and not torch.equal(head, embedding):
        problems.append(f"{source}: lm_head.weight differs from wte.weight; the run's GPT has a tied head")
    elif head is not None:
        state["head.weight"] = head
    elif embedding is not None:
        state["head.weight"] = embedding
    problems += [f"{source}: has the tensor {name}, but the model does not" for name in sorted(bare)]
    if "position_embedding.weight" in state:
        rows = wanted["position_embedding.weight"].shape[0]
        state["position_embedding.weight"] = state["position_embedding.weight"][:rows]
    problems += [
        f"{source}: {name} has shape {list(state[name].shape)}, but the model's has {list(wanted[name].shape)}"
        for name in state
        if state[name].shape != wanted[name].shape
    ]
    if problems:
        raise ConfigurationError([f"{problem}; use weights of this model" for problem in problems])
    return state


def config_document(config: ModelConfig, vocabulary_size: int, end_of_text_id: int | None) -> dict[str, Any]:
    """Return the contents of a config.json from which transformers builds the same model.

    Args:
        config: the model's settings.
        vocabulary_size: number of token ids.
        end_of_text_id: id of the token that ends each document; None if it is unknown.
    """
    shape = config.shape
    common = {
        "dtype": "float32",
        "vocab_size": vocabulary_size,
        # Without a value, transformers uses ids of the original vocabularies.
        "bos_token_id": end_of_text_id,
        "eos_token_id": end_of_text_id,
    }
    if config.is_llama:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **common,
            "hidden_size": shape.hidden_size,
            "intermediate_size": feed_forward_width(shape.hidden_size),
            "num_hidden_layers": shape.num_hidden_layers,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": config.resolved_key_value_heads,
            "head_dim": config.head_channels,
            "max_position_embeddings": shape.sequence_length,
            "rms_norm_eps": NORM_EPSILON,
            # Releases before 5 read rope_theta, later ones rope_parameters.
            "rope_theta": ROTARY_BASE,
            "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        }
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **common,
        "n_embd": shape.hidden_size,
        "n_inner": 4 * shape.hidden_size,
        "n_layer": shape.num_hidden_layers,
        "n_head": shape.num_attention_heads,
        "n_positions": shape.sequence_length,
        "layer_norm_epsilon": GPT_NORM_EPSILON,
        "activation_function": TANH_GELU[0],
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    }


def model_config(document: Mapping[str, Any], source: str) -> ModelConfig:
    """Return the settings of the model that a config.json describes.

    Raises:
        ConfigurationError: The file describes a model that this project does not have.
    """
    kind = document.get("model_type")
    if kind not in ("gpt2", "llama"):
        raise ConfigurationError([f"{source}: model_type: {kind!r}: must be 'gpt2' or 'llama'; use another model"])
    names = {
        "num_hidden_layers": "num_hidden_layers" if kind == "llama" else "n_layer",
        "num_attention_heads": "num_attention_heads" if kind == "llama" else "n_head",
        "hidden_size": "hidden_size" if kind == "llama" else "n_embd",
        "sequence_length": "max_position_embeddings" if kind == "llama" else "n_positions",
    }
    missing = [f"{source}: {name}: missing; add it" for name in names.values() if document.get(name) is None]
    if missing:
        raise ConfigurationError(missing)
    keys = {own: document[name] for own, name in names.items()}
    if kind == "llama":
        keys |= {"architecture": "llama", "num_key_value_heads": document.get("num_key_value_heads")}
    try:
        config = ModelConfig.model_validate(keys)
    except ValidationError as error:
        raise ConfigurationError(
            [f"{source}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        ) from error
    problems = [
        f"{source}: {name}: {value!r}: must be {' or '.join(map(repr, allowed))}; use another model"
        for name, value, allowed in _constants(document, config)
        if value not in allowed
    ]
    if problems:
        raise ConfigurationError(problems)
    return config


def _constants(document: Mapping[str, Any], config: ModelConfig) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield the settings that are constants in this project: name, value or default, and the permitted values."""
    if not config.is_llama:
        yield "n_inner", document.get("n_inner"), (None, 4 * config.shape.hidden_size)
        yield "layer_norm_epsilon", document.get("layer_norm_epsilon", GPT_NORM_EPSILON), (GPT_NORM_EPSILON,)
        yield "activation_function", document.get("activation_function", TANH_GELU[0]), TANH_GELU
        yield "scale_attn_weights", document.get("scale_attn_weights", True), (True,)
        name = "scale_attn_by_inverse_layer_idx"
        yield name, document.get(name, False), (False,)
        yield "tie_word_embeddings", document.get("tie_word_embeddings", True), (True,)
        yield "add_cross_attention", document.get("add_cross_attention", False), (False,)
        return
    rope = document.get("rope_parameters") or {}
    yield "intermediate_size", document.get("intermediate_size", 11008), (feed_forward_width(config.shape.hidden_size),)
    yield "head_dim", document.get("head_dim"), (None, config.head_channels)
    yield "rms_norm_eps", document.get("rms_norm_eps", 1e-6), (NORM_EPSILON,)
    yield "rope_theta", rope.get("rope_theta", document.get("rope_theta", 10000.0)), (ROTARY_BASE,)
    yield "rope_parameters.rope_type", rope.get("rope_type", "default"), ("default",)
    yield "rope_scaling", document.get("rope_scaling"), (None, {"rope_type": "default", "rope_theta": ROTARY_BASE})
    yield "hidden_act", document.get("hidden_act", "silu"), ("silu",)
    yield "attention_bias", document.get("attention_bias", False), (False,)
    yield "mlp_bias", document.get("mlp_bias", False), (False,)
    yield "tie_word_embeddings", document.get("tie_word_embeddings", False), (False,)


def _bare(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name
