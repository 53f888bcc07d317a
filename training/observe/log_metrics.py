"""The `metrics extract` command: extracts metrics from any training script's log as JSON lines.

It parses JSON objects, Python dicts as printed by transformers' Trainer, and names followed by numbers, such as
``step 20/1000 | loss 3.21 | lr 3e-4`` or ``iter 100: loss 2.3, time 12.5ms, mfu 3.1%``.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from training.errors import ConfigurationError

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)\b"
PAIR = re.compile(
    rf"(?P<name>[A-Za-z][\w/.-]*(?: (?:loss|rate|norm))?)\s*[:= ]\s*(?P<value>{NUMBER})"
    r"\s*(?P<unit>%|ms\b|s\b|[kKMG]\b)?",
    re.IGNORECASE,
)
STEP_NAMES = {"step", "steps", "iter", "iteration", "it", "global_step", "update"}
KNOWN = re.compile(
    r"loss|^lr$|learning.rate|acc|perplexity|ppl|norm|mfu|tok|time|throughput|samples|it/s|^dt$|epoch", re.IGNORECASE
)
MAX_DOCUMENT_CHARACTERS = 1 << 20
MAX_LINE_CHARACTERS = 4096
"""Maximum length of a line that is not a JSON object or dict. The pattern takes quadratic time for a long word."""
MAX_NESTING = 16
SCALES = {"%": 0.01, "ms": 1e-3, "k": 1e3, "m": 1e6, "g": 1e9}


def metrics_of(line: str) -> dict[str, float] | None:
    """Return the metrics in a log line, by name; None if there are none.

    Percentages are converted to fractions, and milliseconds to seconds. The suffixes k, M and G are converted to
    factors.
    """
    document = _document_in(line)
    numbers = _numbers(document) if document is not None else _pairs(line)
    has_metrics = any(KNOWN.search(name) for name in numbers)
    return numbers if has_metrics else None


def _document_in(line: str) -> dict[str, Any] | None:
    begin, end = line.find("{"), line.rfind("}")
    if begin < 0 or end < begin:
        return None
    text = line[begin : end + 1]
    if len(text) > MAX_DOCUMENT_CHARACTERS:
        return None
    try:
        document = json.loads(text)
    except RecursionError:
        return None
    except ValueError:
        try:
            document = ast.literal_eval(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # as documented for literal_eval
            return None
    return document if isinstance(document, dict) else None


def _numbers(document: dict[Any, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            if prefix.count("/") < MAX_NESTING:
                found |= _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = _as_float(value)
        elif isinstance(value, str) and re.fullmatch(NUMBER, value):
            found[f"{prefix}{key}"] = float(value.replace(",", ""))
    return found


def _as_float(value: float) -> float:
    """Return infinity for an integer outside the range of float, as Python does for a literal such as 1e999."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _pairs(line: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for match in PAIR.finditer(line[:MAX_LINE_CHARACTERS]):
        name = match["name"].strip().rstrip(":").lower().replace(" ", "_")
        name = "step" if name in STEP_NAMES else name
        if name == "step" or KNOWN.search(name):
            scale = SCALES.get((match["unit"] or "").lower(), 1.0)
            found.setdefault(name, float(match["value"].replace(",", "")) * scale)
    return found


def extract(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the line number and metrics of each line that contains metrics. Non-finite numbers become None."""
    for number, line in enumerate(lines, start=1):
        numbers = metrics_of(line)
        if numbers:
            yield {
                "line": number,
                **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            }


def run_metrics(options: argparse.Namespace, output: TextIO = sys.stdout) -> int:
    """Run ``python -m training metrics extract``; return 1 if the log does not contain metrics.

    Raises:
        ConfigurationError: The log cannot be read.
    """
    path: Path = options.log
    found = 0
    try:
        with sys.stdin if str(path) == "-" else path.open(encoding="utf-8", errors="replace") as lines:
            for record in extract(iter(lines)):
                output.write(json.dumps(record) + "\n")
                found += 1
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read ({error.strerror}); specify a log file"]) from error
    sys.stderr.write(f"{path}: {found} lines with metrics\n")
    return 0 if found else 1
