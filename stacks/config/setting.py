"""How a key of the deployment file is declared: what it means, and what an edit of it does on deploy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Edit = Literal[
    "nothing",
    "restarts the trainer",
    "replaces nodes",
    "new nodes",
    "touches data",
    "in place",
    "replaces the network",
    "changes the delivery",
]
ZoneLetter = Annotated[str, Field(pattern=r"^[a-z]$")]
MountPoint = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./-]{1,100}$")]
EmailAddress = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$", max_length=254)]
Arn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:(\d{12}|aws)?:\S+$")]


def setting(description: str, *, edit: Edit, default: Any = ..., **rules: Any) -> Any:
    """Declare a field with what it means and what an edit of it does to a deployed stack."""
    return Field(default, description=description, json_schema_extra={"edit": edit}, **rules)


def section(description: str, *, edit: Edit) -> Any:
    """Declare a part of the file that may be left out (null): adding or removing it does `edit`."""
    return Field(None, description=description, json_schema_extra={"edit": edit})


class Section(BaseModel):
    """A mapping in the deployment file: unknown keys, wrong types and infinities are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
