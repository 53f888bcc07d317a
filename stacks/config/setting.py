"""Declares deployment file keys, with their meanings and what editing them changes on deploy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Edit = Literal[
    "nothing",
    "restarts the trainer",
    "requires a new run",
    "replaces nodes",
    "new nodes",
    "touches data",
    "in place",
    "replaces the network",
    "creates a second deployment",
    "changes the delivery",
    "applies to new jobs",
    "applies to new pods",
    "requires a new image",
    "repeats steps",
    "replaces the cluster",
]
ZoneLetter = Annotated[str, Field(pattern=r"^[a-z]$")]
MountPoint = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./-]{1,100}$")]
EmailAddress = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$", max_length=254)]
Arn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:(\d{12}|aws)?:\S+$")]


def setting(description: str, *, edit: Edit, default: Any = ..., **rules: Any) -> Any:
    """Declare a key with its meaning and what editing it changes in a deployed stack."""
    return Field(default, description=description, json_schema_extra={"edit": edit}, **rules)


def section(description: str, *, edit: Edit) -> Any:
    """Declare an optional section, null by default. `edit` is the effect of adding or removing it."""
    return Field(None, description=description, json_schema_extra={"edit": edit})


class UndecodedKey(Exception):
    """A key in the deployment file could not be decoded, so rules that read it cannot run."""


class Section(BaseModel):
    """A mapping in the deployment file; unknown keys, wrong types and infinities are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise UndecodedKey for a key that could not be decoded; pydantic handles all other names."""
            if name in type(self).model_fields:
                raise UndecodedKey(name)
            return super().__getattr__(name)
