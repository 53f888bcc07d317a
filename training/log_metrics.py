"""Metrics out of the log of any training script: ``python -m training metrics extract LOG`` prints JSON lines.

Understood are JSON objects, Python dicts as transformers' Trainer prints them, and names with numbers, such as
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
SCALES = {"%": 0.01, "ms": 1e-3, "k": 1e3, "m": 1e6, "g": 1e9}


def metrics_of(line: str) -> dict[str, float] | None:
    """The numbers that a line of a log reports, by name; None if it is no report.

    Per cent become shares, milliseconds seconds, and k, M and G are multiplied out.
    """
    document = _document_in(line)
    numbers = _numbers(document) if document is not None else _pairs(line)
    is_report = any(KNOWN.search(name) for name in numbers)
    return numbers if is_report else None


def _document_in(line: str) -> dict[str, Any] | None:
    begin, end = line.find("{"), line.rfind("}")
    if begin < 0 or end < begin:
        return None
    text = line[begin : end + 1]
    try:
        document = json.loads(text)
    except ValueError:
        try:
            document = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return None
    return document if isinstance(document, dict) else None


def _numbers(document: dict[Any, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            found |= _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
        elif isinstance(value, str) and re.fullmatch(NUMBER, value):
            found[f"{prefix}{key}"] = float(value.replace(",", ""))
    return found


def _pairs(line: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for match in PAIR.finditer(line):
        name = match["name"].strip().rstrip(":").lower().replace(" ", "_")
        name = "step" if name in STEP_NAMES else name
        if name == "step" or KNOWN.search(name):
            scale = SCALES.get((match["unit"] or "").lower(), 1.0)
            found.setdefault(name, float(match["value"].replace(",", "")) * scale)
    return found


def extract(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the reports among a log's lines, each with the number of its line; what is not finite is None."""
    for number, line in enumerate(lines, start=1):
        numbers = metrics_of(line)
        if numbers:
            yield {
                "line": number,
                **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            }


def run_metrics(options: argparse.Namespace, output: TextIO = sys.stdout) -> int:
    """Run ``python -m training metrics extract``; 1 if the log has no metrics.

    Raises:
        ConfigurationError: the log cannot be read.
    """
    path: Path = options.log
    found = 0
    try:
        with sys.stdin if str(path) == "-" else path.open(encoding="utf-8", errors="replace") as lines:
            for record in extract(iter(lines)):
                output.write(json.dumps(record) + "\n")
                found += 1
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read ({error.strerror}); give the path of a log"]) from error
    sys.stderr.write(f"{path}: {found} lines with metrics\n")
    return 0 if found else 1
