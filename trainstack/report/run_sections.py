"""The sections of a report's page about the run itself: text sample, settings, dataset, code and weights."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from trainstack.report.tables import code, details, facts, section
from trainstack.report.text import MISSING, count, decimal, plural, size

Record = Mapping[str, Any]
MAIN_SETTINGS = (
    "steps", "global_batch_size", "micro_batch_size", "seed", "precision", "compile", "entrypoint", "initial_weights",
)  # fmt: skip
MAIN_SECTIONS = ("model.", "optimizer.", "schedule.")


def run_sections(about: Record) -> list[str]:
    """Return the sections that `about` has data for."""
    if not about:
        return []
    return [each for each in (_sample(about.get("sample")), _settings(about), _origin(about)) if each]


def _sample(sample: Record | None) -> str:
    if sample is None:
        return ""
    if "problem" in sample:
        return section("Text sample", "", f'<p class="empty">{escape(sample["problem"])}</p>')
    prompt, text = sample["prompt"], sample["text"]
    shown = f"<b>{escape(prompt)}</b>{escape(text.removeprefix(prompt))}" if text.startswith(prompt) else escape(text)
    note = f"The prompt is bold. Step {count(sample['step'])}, temperature {sample['temperature']}, seed "
    note += f"{sample['seed']}."
    return section("Text sample", note, f'<pre class="sample">{shown}</pre>')


def _settings(about: Record) -> str:
    given = {name: value for name, value in about["settings"].items() if value not in (None, [], {})}
    main = {
        name: value
        for name, value in given.items()
        if name in MAIN_SETTINGS or any(name.startswith(prefix) for prefix in MAIN_SECTIONS)
    }
    rows = [(name, code(_value(value))) for name, value in main.items()]
    nodes = f"{plural(about['nodes'], 'node')}, {plural(about['processes_per_node'], 'process', 'es')} each"
    others = [(name, code(_value(value))) for name, value in given.items() if name not in main]
    more = details(f"{len(others)} other settings", facts(others)) if others else ""
    return section("Hyperparameters", f"{nodes}.", facts(rows) + more)


def _origin(about: Record) -> str:
    dataset, weights = about["dataset"], about["weights"]
    rows = [
        ("dataset", f"{code(dataset['name'])}<br>{code(dataset['url'])}" if dataset["url"] else code(dataset["name"]))
    ]
    if "problem" in dataset:
        rows.append(("dataset", escape(dataset["problem"])))
    if "tokens" in dataset:
        splits = ", ".join(f"{count(tokens)} for {name}" for name, tokens in dataset["tokens"].items())
        rows.append(("tokens", escape(splits)))
        rows.append(("vocabulary", f"{count(dataset['vocabulary_size'])} tokens"))
        rows.append(("bytes per token", decimal(dataset["bytes_per_token"])))
        source = f"{plural(dataset['source_files'], 'file')}, {size(dataset['source_bytes'])}, digest "
        rows.append(("source", f"{source}{code(dataset['source_digest'][:16])}"))
    rows.append(("code", f"SHA-256 {code(about['code']['sha256'][:16])}<br>{code(about['code']['url'])}"))
    rows.append(("run document", f"SHA-256 {code(about['run_digest'][:16])}"))
    step = MISSING if weights["step"] is None else f"step {count(weights['step'])}"
    rows.append(("weights", f"{code(weights['url'])}<br>newest checkpoint: {step}"))
    rows.append(("get the weights", code(f"trainstack weights {about['name']} -o DIR")))
    return section("Dataset, code and weights", "", facts(rows))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
