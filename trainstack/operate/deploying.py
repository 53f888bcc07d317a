"""Creates and removes a deployment: the commands `init` and `down`, and the deploy of `up` for a fleet."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stacks.errors import ConfigError
from trainstack import account, programs
from trainstack.observe.current import observing, status_of
from trainstack.observe.status import Status
from trainstack.operate import desired, slots
from trainstack.operate.verbs import LIMITED, saved
from trainstack.operate.waiting import Look, wait
from trainstack.session import FAILED, INVALID, REFUSED, Account, CommandError, confirm

if TYPE_CHECKING:  # importing the configuration would double the start-up time of commands such as `status`
    from stacks.config import DeploymentConfig

HARMLESS = 10
"""Highest exit code of `python -m stacks diff` that does not require approval."""
FOREVER = float("inf")

File = Annotated[Path, typer.Argument(help="Deployment file, such as config/my-run.yaml.")]


def add(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    for name, command in (("init", init), ("down", down)):
        app.command(name, rich_help_panel="Create and remove a deployment")(command)


def init(
    file: File,
    name: Annotated[str, typer.Option(help="Deployment name; default: the file's name.")] = "",
    region: Annotated[str | None, typer.Option(help="AWS region.")] = None,
    instance_type: Annotated[list[str] | None, typer.Option(help="Instance type; can be repeated.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of instances.")] = None,
    market: Annotated[str | None, typer.Option(help="spot or on_demand.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the dataset.")] = None,
    preset: Annotated[str | None, typer.Option(help="Model preset, such as gpt2 or llama-160m.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences per step, across all GPUs.")] = None,
) -> None:
    """Write a commented deployment file. On a terminal, prompts for values that are not given as options."""
    from trainstack.operate import new_file

    given: dict[str, object] = {
        "name": name or new_file.name_of(file),
        "region": region,
        "instance_types": instance_type,
        "nodes": nodes,
        "market": market,
        "dataset": dataset,
        "preset": preset,
        "steps": steps,
        "global_batch_size": batch,
    }
    ask = input if sys.stdin.isatty() and sys.stdout.isatty() else None
    try:
        config = new_file.write(file, given, ask)
    except new_file.NotWritten as error:
        raise CommandError(INVALID, str(error)) from error
    print(f"{file}: written; {config.name} in {config.region}. Edit it, then run `trainstack up {file}`")


def deploy(file: Path, stacks: Sequence[str], approved: int, *, follows: bool, as_json: bool) -> None:
    """Build a file's wheels, review the change, deploy it, and follow the run until it ends.

    Args:
        file: A valid deployment file with `engine: fleet`.
        stacks: Stacks to deploy; empty: all.
        approved: Approved exit code of the review.
        follows: Whether to report progress until the run ends.
        as_json: Whether to print the status as JSON.
    """
    config = load(file, warn=False)
    _run("bundle", "building wheels", str(file), *(["--locked"] if _is_locked(file) else []))
    deploy_stacks(file, tuple(stacks), approved)
    if config.pipeline is not None:  # the deploy has started no run
        print(f"{config.name}: deployed; start its steps with `trainstack pipeline run {config.name}`")
        return
    opened = observing(config.region)
    deployment = account.find(opened.client, config.name)
    status = status_of(opened, deployment)
    if follows and status.desired != "stopped":
        status = _follow(opened, deployment)
    _report(status, as_json=as_json)


def deploy_stacks(
    file: Path, stacks: tuple[str, ...], approved: int, *, persistent: Callable[[], None] | None = None
) -> None:
    """Review a file's change, and deploy it.

    Args:
        file: A valid deployment file with stacks.
        stacks: Stacks to deploy; empty: all.
        approved: Approved exit code of the review.
        persistent: Called before the deploy of the last stack, when the network and the storage exist.

    Raises:
        CommandError: The review or the deploy failed, or the change is not approved.
    """
    from stacks.delivery.review import MEANINGS

    code = programs.run(programs.python("stacks", "diff", str(file)), "reviewing the change")
    if code not in MEANINGS:
        raise CommandError(INVALID if code == INVALID else FAILED, f"{file}: the review failed (code {code})")
    if code:
        approve(file, code, approved, "Deploy?", "nothing was deployed")
        if persistent is not None:
            if not stacks:
                _run("deploy", "deploying", str(file), "NetworkStack", "StorageStack", "--yes")
            persistent()
        _run("deploy", "deploying", str(file), *stacks, "--yes")
    else:
        print(f"{file}: nothing to deploy", file=sys.stderr)


def down(
    file: File,
    data: Annotated[bool, typer.Option("--data", help="Also delete the data; requires --allow-destroy.")] = False,
    allow_destroy: Annotated[
        bool, typer.Option("--allow-destroy", help="Required with --data, in addition to storage.deletion: destroy.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete the fleet or the cluster, and all other billed resources except the data, and list the data with its
    monthly price.

    With --data and --allow-destroy, and storage.deletion: destroy in the file, also deletes the buckets and
    StorageStack.
    """

    from stacks.config.slots import slot as slot_of

    config = load(file)
    if not config.stacks:
        rule = f"engine {config.engine} has no billed resources to delete; end its jobs with `trainstack stop {file}`"
        raise CommandError(REFUSED, f"{file}: {rule}")
    if data and not (config.storage.deletion == "destroy" and allow_destroy):
        raise CommandError(
            REFUSED,
            f"{file}: --data deletes checkpoints and datasets, so it requires both storage.deletion: destroy "
            f"(found {config.storage.deletion}) and --allow-destroy ({'given' if allow_destroy else 'missing'})",
        )
    options = ["--force"]
    if not yes:
        parts = (
            ["the fleet", "the network", "the alarms"] if config.engine == "fleet" else ["the cluster", "the network"]
        )
        what = f"{', '.join(parts)} AND ALL DATA" if data else f"{', '.join(parts[:-1])} and {parts[-1]}"
        confirm(f"Delete {what} of {config.name}?", "nothing was deleted", "--yes")
    if data:
        options += ["--data", "--context", "allow-destroy=true"]
    print(f"finding the slots of {config.name}", file=sys.stderr, flush=True)
    client = Account(config.region).client
    found = account.slots(client, config.name)  # before the deletion, also slots that the file no longer contains
    _run("destroy", "deleting", str(file), *options)
    for slot in found:
        if not slot_of(config, slot.slot).owns_run_parameter:  # written at run time, so in no template
            slots.forget(client, slot)
    for name in sorted({config.name, *(slot.name for slot in found)}):
        desired.forget(client, name)
    print(f"{config.name}: deleted" + ("" if data else "; the data remains"))


def load(file: Path, *, warn: bool = True) -> DeploymentConfig:
    """Load a file and print its warnings, unless `warn` is false.

    Raises:
        CommandError: The file is invalid.
    """
    from stacks.loading import load
    from stacks.validators import warnings

    try:
        config = load(file)
        for problem in warnings(config) if warn else ():
            print(f"{problem.severity}: {problem}", file=sys.stderr)
    except ConfigError as error:
        raise CommandError(INVALID, str(error)) from error
    return config


def _is_locked(file: Path) -> bool:
    from stacks.artifacts.wheelhouse import LOCK_NAME

    return file.with_name(LOCK_NAME).exists()


def _run(verb: str, what: str, *arguments: str) -> None:
    code = programs.run(programs.python("stacks", verb, *arguments), what)
    if code:
        raise CommandError(code if code in (FAILED, INVALID) else FAILED, f"{what} failed (code {code}); see above")


def approve(file: Path, code: int, approved: int, question: str, otherwise: str) -> None:
    """Check that a change is approved, or ask on the terminal.

    Args:
        file: The deployment file.
        code: Exit code of the review.
        approved: Approved exit code.
        question: The question after the meaning of the code.
        otherwise: The consequence of any other answer than yes.

    Raises:
        CommandError: The change is not approved.
    """
    from stacks.delivery.review import MEANINGS

    if code <= max(approved, HARMLESS):
        return
    confirm(f"{file}: {MEANINGS[code]} (code {code}). {question}", otherwise, f"--approved {code}")


def _follow(opened: Account, deployment: account.Deployment) -> Status:
    status = status_of(opened, deployment)

    def look() -> Look:
        nonlocal status
        status = status_of(opened, deployment)
        is_over = status.phase == "ended" or (status.phase in ("stopped", LIMITED) and not status.nodes)
        return Look(is_over, progress(status))

    wait(look, FOREVER)
    return status


def progress(status: Status) -> str:
    """Return a status as one line."""
    if status.phase != "running" or status.step is None:
        return f"{status.phase}: {status.reason}"
    total = "" if status.steps_total is None else f" of {status.steps_total:,}"
    loss = "" if status.loss is None else f", loss {status.loss:.4f}"
    return f"{status.phase}: step {status.step:,}{total}{loss}, {len(status.nodes)} nodes, {saved(status)}"


def _report(status: Status, *, as_json: bool) -> None:
    """Print the status.

    Raises:
        CommandError: The run failed, or has reached a limit.
    """
    if as_json:
        print(json.dumps(status.to_json()))
    else:
        print(f"{status.name}: {progress(status)}")
    if status.desired == "stopped":
        print(f"{status.name} is stopped; start it with `trainstack resume {status.name}`", file=sys.stderr)
    if status.phase == LIMITED:
        raise CommandError(FAILED, f"{status.name}: {status.reason}")
    if status.phase == "ended" and status.cause != "finished":
        raise CommandError(FAILED, f"{status.name}: the run failed; see `trainstack why {status.name}`")
