"""The actions of `python -m stacks deliver`, on the options that its command line declares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from stacks.config import STACKS, load
from stacks.delivery.bootstrap_role import AccountError, environment_of, reading_session
from stacks.delivery.deploy import DeployError, deploy
from stacks.delivery.review import DEPLOYED, Form, Review, ReviewError, review, worst
from stacks.errors import ConfigError
from stacks.functions.drift_watch.detection import DetectionError, detect
from stacks.wheelhouse import DIRECTORY
from stacks.wheelhouse.making import build_locked
from stacks.wheelhouse.resolving import WheelhouseError

FAILED, WRONG, STOPPED = 1, 2, 3
"""Exit codes: AWS or the deploy failed; an input is wrong; the gate stopped a deploy, or there is drift."""
DRIFT_TIMEOUT_SECONDS = 1800.0
# GitHub's limit of a comment, in characters. Source (2026-11): https://github.com/orgs/community/discussions/27190
COMMENT_CHARACTERS = 65_536
SYNTHESISES = ("diff", "gate", "deploy")
"""What needs the wheels that are locked beside a deployment file."""
MARK = "<!-- trainstack diff -->"
"""First line of the comment, by which the next one finds it."""


def perform(options: argparse.Namespace) -> int:
    """Perform `options.action`; return the exit code."""
    try:
        if options.action in SYNTHESISES:
            for file in options.configs:
                build_locked(file, DIRECTORY, lambda text: print(text, file=sys.stderr))
        return ACTIONS[options.action](options)
    except (AccountError, DeployError, DetectionError, ReviewError, WheelhouseError) as error:
        print(error, file=sys.stderr)
        return FAILED


def _check(options: argparse.Namespace) -> int:
    wrong = 0
    for file in options.configs:
        try:
            config = load(file)
        except ConfigError as error:
            wrong += 1
            print(error, file=sys.stderr)
        else:
            print(f"{file}: sound: {config.name} in {config.region}")
    return WRONG if wrong else 0


def _diff(options: argparse.Namespace) -> int:
    reviews = [_review(file, options.against, "markdown") for file in options.configs]
    text = "\n".join([MARK, *(each.text for each in reviews)])
    if len(text) > COMMENT_CHARACTERS:
        note = "\n\n(cut: the rest does not fit into a comment; run `python -m stacks diff` for all of it)\n"
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
        reviews.append(_review(file, DEPLOYED, "text"))
        print(reviews[-1].text, flush=True)
    found = worst(reviews)
    verdict = "ask" if found.code >= options.approve_from else "pass"
    lines = [f"verdict={verdict}", f"code={found.code}", f"summary={found}"]
    print("\n".join(lines))
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as output:
            output.write("\n".join(lines) + "\n")
    return 0


def _deploy(options: argparse.Namespace) -> int:
    for file in options.configs:
        # Again, although a gate looked: between the two something else may have been deployed.
        found = _review(file, DEPLOYED, "text")
        print(found.text, flush=True)
        if found.code >= options.approve_from and found.code > options.approved:
            print(
                f"{found} (code {found.code}): stopped, since a person must agree from {options.approve_from} on; "
                f"read the lines above, then deploy with --approved {found.code}",
                file=sys.stderr,
            )
            return STOPPED
        if found.code:
            deploy(load(file), file)
        print(f"{found}: {'deployed' if found.code else 'nothing to do'}", flush=True)
    return 0


def _drift(options: argparse.Namespace) -> int:
    drifts = []
    for file in options.configs:
        config = load(file)
        stacks = [f"{config.name}-{stack}" for stack in STACKS]
        print(f"{file}: compares {', '.join(stacks)} with their templates", flush=True)
        drifts += detect(
            reading_session(config).client("cloudformation"), stacks, timeout_seconds=DRIFT_TIMEOUT_SECONDS
        )
    for drift in drifts:
        print(drift)
    print(f"{len(drifts)} resources differ from their templates")
    return STOPPED if drifts else 0


def _review(file: Path, against: str, form: Form) -> Review:
    config = load(file)
    environment = environment_of(reading_session(config)) if against == DEPLOYED else {}
    return review(file, against=against, form=form, environment=environment)


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "check": _check,
    "diff": _diff,
    "gate": _gate,
    "deploy": _deploy,
    "drift": _drift,
}
