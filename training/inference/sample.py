"""Continues a text with a trained model: ``python -m training sample``."""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

from training.data.text.bpe import ENDS_OF_TEXT
from training.errors import ConfigurationError
from training.inference.trained import open_tokenizer, open_trained
from training.models.gpt import GPT
from training.models.key_value_cache import KeyValueCache
from training.models.llama import Llama


def run_sample(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        TrainingError: The options are invalid, or the model or tokenizer cannot be opened.
    """
    problems = []
    if options.max_new_tokens < 1:
        problems.append(f"--max-new-tokens: {options.max_new_tokens}: must be at least 1; raise it")
    if not 0 <= options.temperature < float("inf"):
        problems.append(f"--temperature: {options.temperature}: must be a number of at least 0; correct it")
    if options.top_k is not None and options.top_k < 1:
        problems.append(f"--top-k: {options.top_k}: must be at least 1; raise it, or omit it")
    if not 0 <= options.seed < 1 << 63:
        problems.append(f"--seed: {options.seed}: must be from 0 to 2^63 - 1; correct it")
    if problems:
        raise ConfigurationError(problems)
    trained = open_trained(options.model)
    tokenizer = open_tokenizer(trained, options.dataset)
    prompt = tokenizer.encode(options.prompt, add_special_tokens=False).ids
    if not prompt:
        raise ConfigurationError([f"--prompt: {options.prompt!r}: contains no token; enter some text"])
    found = (tokenizer.token_to_id(name) for name in ENDS_OF_TEXT)
    ids = generate(
        trained.model,
        prompt,
        options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        seed=options.seed,
        ends=frozenset(each for each in found if each is not None),
    )
    sys.stdout.write(tokenizer.decode(prompt + ids) + "\n")
    return 0


@torch.no_grad()
def generate(
    model: GPT | Llama,
    prompt: list[int],
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    ends: frozenset[int] = frozenset(),
    uses_cache: bool = True,
) -> list[int]:
    """Return new token ids after a prompt. Each token is computed from the last ``sequence_length`` tokens.

    The result depends only on the arguments and the scores: random numbers come from the CPU. With a cache, the model
    computes only the newest token at each step. Once the text is longer than ``sequence_length``, the positions of all
    tokens change at each step, so that the model computes all of them.

    Args:
        model: model in evaluation mode.
        prompt: at least one token id.
        max_new_tokens: maximum length of the result.
        temperature: divisor of the scores; 0 selects the most probable token.
        top_k: number of most probable tokens to sample from; None: all tokens.
        seed: random seed for sampling.
        ends: token ids that end the text; they are not part of the result.
        uses_cache: False to compute all tokens at each step, which is slower and has the same result up to rounding.
    """
    random = torch.Generator().manual_seed(seed)
    device, longest = model.token_embedding.weight.device, model.shape.sequence_length
    tokens = list(prompt)
    cache = KeyValueCache(model.shape.num_hidden_layers, longest) if uses_cache else None
    for _ in range(max_new_tokens):
        if len(tokens) > longest:
            cache = None
        context = tokens[-longest:] if cache is None else tokens[cache.length :]
        scores = model.logits(torch.tensor([context], device=device), cache)
        token = _choose(scores[0, -1].float().cpu(), temperature, top_k, random)
        if token in ends:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def _choose(scores: Tensor, temperature: float, top_k: int | None, random: torch.Generator) -> int:
    """Return one token id. Shapes: scores [vocabulary_size]."""
    if temperature == 0 or top_k == 1:
        return int(scores.argmax())
    if top_k is not None and top_k < scores.numel():
        best, numbers = scores.topk(top_k)
        scores = torch.full_like(scores, -torch.inf).scatter(0, numbers, best)
    # Subtract the maximum first: a tiny temperature would otherwise make scores infinite.
    probabilities = torch.softmax((scores - scores.max()) / temperature, dim=0)
    return int(torch.multinomial(probabilities, 1, generator=random))
