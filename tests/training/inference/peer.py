"""A program for an environment with transformers: `peer.py load FOLDER`, or `peer.py make FOLDER KIND VOCABULARY_SIZE`.

`load` opens a model folder, and writes the logits of TOKENS and the tokenizer's ids of TEXT to its files. `make` writes
a folder with a small model with random weights, and its logits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import (  # type: ignore[import-not-found]
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

TOKENS = torch.arange(64).reshape(2, 32) * 7 % 290


def load(folder: Path, text: str) -> None:
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    write(model, folder)
    problems = {name: sorted(map(str, found)) for name, found in report.items() if found}
    ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"] if text else []
    result = {"problems": problems, "ids": ids, "dtype": str(model.dtype)}
    (folder / "result.json").write_text(json.dumps(result))


def make(folder: Path, kind: str, vocabulary_size: int) -> None:
    torch.manual_seed(3)
    common = {"vocab_size": vocabulary_size, "bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt":
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=32, n_positions=32, **common))
    else:
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "max_position_embeddings": 32}
        more = {"num_key_value_heads": 2, "intermediate_size": 96, "rms_norm_eps": 1e-5}
        model = LlamaForCausalLM(LlamaConfig(**sizes, **more, **common))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder)
    write(model, folder)


def write(model: torch.nn.Module, folder: Path) -> None:
    with torch.no_grad():
        torch.save(model.eval()(TOKENS).logits, folder / "logits.pt")


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load(Path(sys.argv[2]), sys.argv[3])
    else:
        make(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
