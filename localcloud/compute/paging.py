"""One page of a describe call's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.api import ApiError


def page(items: Sequence[Any], parameters: Mapping[str, Any], name: str, most: int = 1000) -> dict[str, Any]:
    """Return the page that MaxResults and NextToken ask for under `name`, with the token of the next one.

    Raises:
        ApiError: InvalidNextToken.
    """
    token = parameters.get("NextToken") or "0"
    if not str(token).isdigit():
        raise ApiError("InvalidNextToken", f"The token '{token}' is invalid.")
    start, size = int(token), min(int(parameters.get("MaxResults") or most), most)
    answer: dict[str, Any] = {name: list(items[start : start + size])}
    if start + size < len(items):
        answer["NextToken"] = str(start + size)
    return answer
