"""Checkpoint addresses: ``URL`` for a store's newest complete checkpoint, or ``URL#CHECKPOINT``.

The command line parser imports this module, so it must not import slow modules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from training.errors import ConfigurationError

GRAMMAR = (
    "URL is s3://bucket/prefix or a directory. CHECKPOINT is a step (the newest checkpoint for that step), a tag, "
    "entry:N (a log entry), or newest (the default)."
)
NEWEST = "newest"
ENTRY_PREFIX = "entry:"
TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Address:
    """A store's URL, and the selector for one checkpoint in it."""

    url: str
    selector: str = NEWEST

    @classmethod
    def parse(cls, text: str) -> Address:
        """Split ``URL#CHECKPOINT``.

        Raises:
            ConfigurationError: The part after # is not a checkpoint selector.
        """
        url, mark, selector = text.rpartition("#")
        if not mark:
            return cls(text)
        number = selector.removeprefix(ENTRY_PREFIX)
        if not url or not (number.isdecimal() or TAG_NAME.fullmatch(selector)):
            raise ConfigurationError([f"{text}: the part after the last # is not a checkpoint selector; {GRAMMAR}"])
        return cls(url, selector)
