"""A row of the table of AWS's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Account(Protocol):
    """The account to which a row sends its request."""

    def client(self, service: str) -> Any:
        """Return a boto3 client of the root user."""
        ...


@dataclass(frozen=True)
class Row:
    """A request, and AWS's answer to it.

    Attributes:
        name: Short description of the request, unique in the table.
        send: Sends the request, after the calls that prepare it, and returns the answer. Only the request may fail.
        source: Where AWS's answer can be read: a URL, or a member of a botocore model.
        code: Code of the error that AWS returns, or "" if AWS accepts the request.
        words: A part of the error's message, in AWS's words.
        status: HTTP status of the error, or 0 if the source does not contain it.
        holds: Returns True for an accepted request's answer if it is like AWS's.
        gap: Reason why the embedded cloud answers differently, for a known difference.
    """

    name: str
    send: Callable[[Account], Any]
    source: str
    code: str = ""
    words: str = ""
    status: int = 0
    holds: Callable[[Any], bool] = lambda answer: True
    gap: str = ""
