"""Policies for bytes that are invalid in the file's encoding, and counts of the changes."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from pathlib import Path
from typing import Literal, get_args

from training.errors import TokenizeError

Decoding = Literal["strict", "replace", "skip-line"]
POLICIES = get_args(Decoding)
REPLACED, SKIPPED_LINES, EMPTY = "replaced characters", "skipped lines", "records without text"
"""Kinds of loss in a file, as named in ``sources.jsonl``."""
REMEDY = "correct it, or choose --decoding replace or skip-line"
MARK = "\udcff"
"""Represents invalid bytes in decoded text. Valid text never contains a lone surrogate."""
MARK_INVALID = "trainstack.mark"
"""Name of the error handler that decodes invalid bytes as MARK."""
_LINE = re.compile("[^\n]*\n|[^\n]+")
_SURROGATE = re.compile("[\ud800-\udfff]")

codecs.register_error(MARK_INVALID, lambda error: (MARK, getattr(error, "end")))  # noqa: B009 (typed as Exception)


def settle(text: str, path: Path, place: str, policy: Decoding, losses: Counter[str]) -> str:
    """Apply the policy to decoded text that may contain lone surrogates, such as MARK.

    Args:
        text: decoded lines.
        path: the file.
        place: the text's place in the file, for the message.
        policy: the policy.
        losses: counts to increase.

    Raises:
        TokenizeError: The text contains a lone surrogate and the policy is strict.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        if policy == "strict":
            raise TokenizeError([f"{path}: {place}: invalid characters; {REMEDY}"]) from None
        if policy == "replace":
            text, count = _SURROGATE.subn("\ufffd", text)
            losses[REPLACED] += count
        else:
            lines = _LINE.findall(text)
            kept = [line for line in lines if not _SURROGATE.search(line)]
            losses[SKIPPED_LINES] += len(lines) - len(kept)
            text = "".join(kept)
    return text


def decode(content: bytes, first: int, path: Path, policy: Decoding, losses: Counter[str]) -> str:
    """Decode UTF-8 lines that begin at byte ``first`` of a file. Remove a byte order mark at the beginning of the file.

    Raises:
        TokenizeError: The lines are not UTF-8 and the policy is strict.
    """
    encoding = "utf-8" if first else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        place = f"byte {first + error.start}"
        return settle(content.decode(encoding, MARK_INVALID), path, place, policy, losses)


class Utf8Check:
    """Finds the first byte in a file that is not valid UTF-8.

    Attributes:
        invalid: offset of that byte; None if none has been found.
    """

    def __init__(self) -> None:
        self.invalid: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._done = 0

    def update(self, content: bytes, *, final: bool) -> None:
        """Check the next bytes of the file."""
        if self.invalid is not None:
            return
        pending = len(self._decoder.getstate()[0])
        try:
            self._decoder.decode(content, final)
        except UnicodeDecodeError as error:
            self.invalid = self._done - pending + error.start
        self._done += len(content)
