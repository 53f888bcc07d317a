"""New names for keys that earlier releases used."""

from __future__ import annotations

from collections.abc import Sequence

RENAMED_KEYS = {
    "global_batch_sequences": "global_batch_size",
    "micro_batch_sequences": "micro_batch_size",
    "optimizer.gradient_clip": "max_grad_norm",
    "schedule.minimum_ratio": "min_lr_ratio",
    "model.layers": "num_hidden_layers",
    "model.heads": "num_attention_heads",
    "model.embedding": "hidden_size",
    "model.key_value_heads": "num_key_value_heads",
    "model.context": "sequence_length",
    "recovery.most_skipped_steps": "max_skipped_steps",
    "recovery.most_roll_backs": "max_rollbacks",
    "early_stopping.minimum_improvement": "min_delta",
    "observation.profile.most_mib": "max_mib",
}
"""Maps a renamed key's dotted path in a TrainingConfig to the new key in the same section."""


def new_name(location: Sequence[int | str]) -> str | None:
    """Return the new name of a key from an earlier release, or None if no release had the key.

    Args:
        location: the sections and the key, as in the ``loc`` of a pydantic error for a TrainingConfig.
    """
    return RENAMED_KEYS.get(".".join(map(str, location)))
