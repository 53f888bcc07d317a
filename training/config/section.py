"""The base class for all sections in a training config."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

NEW_RUN: dict[str, Any] = {"edit": "requires a new run"}
"""Marks keys that determine which checkpoints a run can resume from. Editing other keys only restarts the trainer."""


class Section(BaseModel):
    """A config section. It rejects unknown keys and non-finite numbers, and is immutable after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
