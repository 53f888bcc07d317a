"""The actions of `python -m stacks deliver`. `stacks/commands/deliver.py` defines the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from stacks.artifacts.wheelhouse import DIRECTORY
from stacks.artifacts.wheelhouse.making import build_locked
from stacks.artifacts.wheelhouse.resolving import WheelhouseError
from stacks.delivery.deploy import deploy
from stacks.delivery.review import DEPLOYED, MEANINGS, Form, Review, ReviewError, review, worst_of
from stacks.delivery.sessions import AccountError, environment_of, lookup_session
from stacks.errors import ConfigError, DeployError
from stacks.functions.drift_watch.detection import DetectionError, detect
from stacks.loading import load

FAILED, INVALID, STOPPED = 1, 2, 3
"""Exit codes: AWS or the deploy failed; the input is invalid; the gate stopped a deploy or drift was detected."""
DRIFT_TIMEOUT_SECONDS = 1800.0
# GitHub's comment size limit in characters. Source (2026-11): https://github.com/orgs/community/discussions/27190
COMMENT_CHARACTERS = 65_536
SYNTHESISES = ("diff", "gate", "deploy")
"""Actions that need a deployment file's locked wheels."""
MARK = "<!-- trainstack diff -->"
"""The first line of the comment. The workflow uses it to find an existing comment."""


def perform(options: argparse.Namespace) -> int:
    """Run `options.action` and return the exit code."""
    try:
        if options.action in SYNTHESISES and getattr(options, "templates", None) is None:
            for file in options.configs:
                build_locked(file, DIRECTORY, lambda text: print(text, file=sys.stderr))
        return ACTIONS[options.action](options)
    except (AccountError, DeployError, DetectionError, ReviewError, WheelhouseError) as error:
        print(error, file=sys.stderr)
        return FAILED


def _check(options: argparse.Namespace) -> int:
    invalid = 0
    for file in options.configs:
        try:
            config = load(file)
        except ConfigError as error:
            invalid += 1
            print(error, file=sys.stderr)
        else:
            print(f"{file}: valid: {config.name} in {config.region}")
    return INVALID if invalid else 0


def _diff(options: argparse.Namespace) -> int:
    reviews = [_review(file, options.against, "markdown", options.templates) for file in options.configs]
    text = "\n".join([MARK, *(each.text for each in reviews)])
    if len(text) > COMMENT_CHARACTERS:
        note = "\n\n(truncated to fit in a comment; run `python -m stacks diff` for the full review)\n"
        text = text[: COMMENT_CHARACTERS - len(note)] + note
    if options.output is None:
        print(text)
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")
    return 0


def _gate(options: argparse.Namespace) -> int:
    reviews = []
    for file in options.configs:
        reviews.append(_gate_review(file, options.templates, options.stack))
        print(reviews[-1].text, flush=True)
    worst = worst_of(reviews)
    verdict = "ask" if worst.code >= options.approve_from else "pass"
    lines = [f"verdict={verdict}", f"code={worst.code}", f"summary={worst}"]
    print("\n".join(lines))
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as output:
            output.write("\n".join(lines) + "\n")
    return 0


def _deploy(options: argparse.Namespace) -> int:
    for file in options.configs:
        # Review again because another deploy may have run since the gate.
        found = _review(file, DEPLOYED, "text", None)
        print(found.text, flush=True)
        if found.code >= options.approve_from and found.code > options.approved:
            print(
                f"{found} (code {found.code}): stopped: codes {options.approve_from} and above need approval; read "
                f"the review above, then deploy with --approved {found.code}",
                file=sys.stderr,
            )
            return STOPPED
        if found.code:
            deploy(load(file), file)
        print(f"{found}: {'deployed' if found.code else 'nothing to deploy'}", flush=True)
    return 0


def _drift(options: argparse.Namespace) -> int:
    drifts = []
    for file in options.configs:
        config = load(file)
        print(f"{file}: detecting drift in {', '.join(config.stack_names)}", flush=True)
        client = lookup_session(config).client("cloudformation")
        drifts += detect(client, config.stack_names, timeout_seconds=DRIFT_TIMEOUT_SECONDS)
    for drift in drifts:
        print(drift)
    print(f"{len(drifts)} resources differ from their templates")
    return STOPPED if drifts else 0


def _gate_review(file: Path, templates: Path | None, stack: str | None) -> Review:
    """Review a file. With templates, require approval if the gate's revision cannot read the file or its templates."""
    try:
        return _review(file, DEPLOYED, "text", templates, stack)
    except (ConfigError, ReviewError) as error:
        if templates is None:
            raise
        return Review(file, max(MEANINGS), f"{file}: this revision of the gate cannot review the change:\n{error}")


def _review(file: Path, against: str, form: Form, templates: Path | None, stack: str | None = None) -> Review:
    config = load(file)
    environment = environment_of(lookup_session(config)) if against == DEPLOYED else {}
    assembly = None if templates is None else templates / file.name
    return review(file, against=against, form=form, environment=environment, templates=assembly, stack=stack)


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "check": _check,
    "diff": _diff,
    "gate": _gate,
    "deploy": _deploy,
    "drift": _drift,
}
