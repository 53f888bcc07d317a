"""A row in the table of AWS's responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Account(Protocol):
    """The account to which a row sends its request."""

    def client(self, service: str) -> Any:
        """Return a boto3 client that signs as root."""
        ...


@dataclass(frozen=True)
class Row:
    """A request and AWS's response.

    Attributes:
        name: Short description of the request, unique in the table.
        send: Makes the preparatory calls, sends the request and returns the response. Only the request may fail.
        source: Source of AWS's response: a URL, or a member of a botocore model.
        code: Code of the error that AWS returns, or "" if AWS accepts the request.
        words: Part of AWS's error message.
        status: HTTP status of the error, or 0 if the source does not contain it.
        holds: Returns True if the response to an accepted request agrees with AWS's.
        gap: Reason for a known difference; "" if the embedded cloud responds as AWS does.
    """

    name: str
    send: Callable[[Account], Any]
    source: str
    code: str = ""
    words: str = ""
    status: int = 0
    holds: Callable[[Any], bool] = lambda answer: True
    gap: str = ""
