"""Reads the parameters with the run document and the desired state."""

from __future__ import annotations

import hashlib
import json

from . import policy, records


class UnreadableRunDocument(ValueError):
    """The run parameter does not contain a run document. The fleet stays unchanged."""


class UnreadableDesiredState(ValueError):
    """The parameter with the desired state is invalid. The fleet stays unchanged."""


def read_run(text: str) -> policy.Run:
    """Return the run that a run document describes, with the document's digest.

    Raises:
        UnreadableRunDocument: The text is not JSON or not a run document.
    """
    try:
        document = json.loads(text)
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        return policy.Run(
            name=document["run"],
            digest=hashlib.sha256(canonical).hexdigest(),
            nodes=int(document["nodes"]),
            min_nodes=int(document["min_nodes"]),
            dataset=None if document.get("prepare") else str(document["dataset"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UnreadableRunDocument(
            f"the run parameter does not contain a run document ({error!r}); deploy it again"
        ) from error


def read_stop(text: str) -> str:
    """Return the reason why a desired state keeps the run stopped, or "".

    Raises:
        UnreadableDesiredState: The text is not a desired state.
    """
    try:
        return records.stop_of(records.json_object(text.encode(errors="replace")))
    except records.InvalidRecord as error:
        raise UnreadableDesiredState(
            f"the parameter with the desired state is invalid ({error}); replace it with `trainstack resume`"
        ) from error
