"""The desired state of a deployment, which an operator requests with `trainstack stop`, `resume` or `restart`.

The command stores it in its own SSM parameter. No template contains this parameter, so a deploy does not change it.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from bootstrap.documents.decoding import (
    SCHEMA_VERSION,
    AtLeast,
    Matches,
    checked,
    decode_document,
    parse_text,
    to_plain,
)

_MAX_REQUESTER = r"[\w+=,.@:/ -]{0,256}"


@dataclass(frozen=True)
class Restart:
    """A request to restart the trainers: generations of `run` up to this number save a checkpoint and end."""

    run: Annotated[str, Matches(r"[a-z0-9-]{1,40}", "must be a run name")]
    generation: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class DesiredState:
    """The state that an operator requested for a deployment.

    Attributes:
        state: `stopped`: the nodes save a checkpoint and shut down, and the fleet stays at zero.
        restart: The latest restart, or None.
        requested_by: ARN of the principal that requested the state.
        unix_seconds: Time of the request.
    """

    schema_version: int = SCHEMA_VERSION
    state: Literal["running", "stopped"] = "running"
    restart: Restart | None = None
    requested_by: Annotated[str, Matches(_MAX_REQUESTER, "must be the ARN of a principal")] = ""
    unix_seconds: Annotated[float, AtLeast(0)] = 0.0

    @classmethod
    def from_text(cls, text: str, *, document: str = "desired state") -> DesiredState:
        """Decode JSON text.

        Raises:
            DocumentError: The document is invalid. `problems` lists every problem.
        """
        state, problems = decode_document(cls, parse_text(text, document), document)
        return checked(state, problems, document)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON values, which `from_text` decodes."""
        plain = typing.cast("dict[str, Any]", to_plain(self))
        return {"schema_version": self.schema_version, "state": self.state, **plain}

    def restart_generation(self, run: str) -> int:
        """Return the last generation of a run that must end because of a restart request, or 0."""
        return self.restart.generation if self.restart is not None and self.restart.run == run else 0


RUNNING = DesiredState()
"""The desired state of a deployment whose parameter does not exist."""


def desired_parameter(deployment: str) -> str:
    """Return the name of the SSM parameter with a deployment's desired state."""
    return f"/trainstack/{deployment}/desired"
