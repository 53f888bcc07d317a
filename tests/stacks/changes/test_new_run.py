"""Edits to a run document after which the run rejects its checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.changes.effects.nodes import needs_new_run
from stacks.changes.templates.values import RUN_DOCUMENT
from stacks.changes.updates.differences import Difference


def edit(path: str, before: Any, after: Any) -> Difference:
    return Difference(("Value", RUN_DOCUMENT, *path.split("/")), before, after, "in place")


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("dataset", "a", "b"),
        ("training/seed", 1, 2),
        ("training/model/preset", "gpt2", "gpt2-medium"),
        ("training/model/architecture", "gpt", "llama"),
        ("training/model/num_hidden_layers", 2, 3),
        ("training/model/num_attention_heads", 2, 4),
        ("training/model/hidden_size", 64, 128),
        ("training/model/num_key_value_heads", 2, 1),
        ("training/model/sequence_length", 128, 256),
        ("training/data/documents", "joined", "apart"),
        ("training/data/stream_cache_gib", None, 5.0),
        ("training/data/function", "a:b", "a:c"),
        ("training/data/options/classes/0", 2, 3),
    ],
)
def test_edit_requires_a_new_run(path: str, before: Any, after: Any) -> None:
    assert needs_new_run([edit(path, before, after)])
    assert not needs_new_run([edit(path, before, after), edit("run", "one", "two")]), "the run is new"


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("training/steps", 10, 20),
        ("training/model/dropout", 0.1, 0.2),
        ("training/data/stream_cache_gib", 5.0, 6.0),
        ("training/data/workers", 1, 2),
        ("training/optimizer/learning_rate", 0.1, 0.2),
        ("nodes", 1, 2),
        ("code/sha256", "a", "b"),
    ],
)
def test_edit_restarts_the_trainer_only(path: str, before: Any, after: Any) -> None:
    assert not needs_new_run([edit(path, before, after)])
