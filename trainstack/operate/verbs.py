"""Commands that change a fleet's run: `stop`, `resume`, `restart` and `retry`. Each waits for its effect."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from bootstrap.documents.desired_state import DesiredState
from trainstack import account
from trainstack.account import Deployment
from trainstack.observe.current import observing, status_of
from trainstack.observe.status import Status
from trainstack.operate import desired
from trainstack.operate.waiting import Look, wait
from trainstack.session import FAILED, REFUSED, Account, CommandError, Json, Name, Region

STOP_SECONDS = 900.0
START_SECONDS = 600.0
RETRY_SECONDS = 180.0
"""Time limits of the waits. A stop includes the last save and the termination of the nodes."""
LIMITED = "limited"
LATCHED = ("protected", "probing", "waiting", "giving_up")

Waits = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the effect is visible.")]


def add(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    for name, command in (("restart", restart), ("retry", retry)):
        app.command(name, rich_help_panel="Change a run")(command)


class Change:
    """A deployment that a command changes, its status before the change, and its status now."""

    def __init__(self, name: str, region: str | None, *, as_json: bool) -> None:
        self.opened: Account = observing(region).prepare("sts", "events")
        self.deployment: Deployment = account.find(self.opened.client, name)
        self.before = self.look()
        self._as_json = as_json

    @property
    def name(self) -> str:
        """Name of the deployment."""
        return self.deployment.name

    def look(self) -> Status:
        """Return the status now."""
        return status_of(self.opened, self.deployment)

    def desired(self) -> DesiredState:
        """Return the stored desired state, or the default if it is invalid."""
        return account.parameters(self.opened.client, self.deployment, [])[1]

    def who(self) -> str:
        """Return the ARN of the caller."""
        return str(self.opened.client("sts").get_caller_identity()["Arn"])

    def write(self, state: DesiredState) -> None:
        """Store a desired state."""
        desired.write(self.opened.client, self.name, state)

    def done(self, text: str, status: Status) -> None:
        """Print the result."""
        if self._as_json:
            print(json.dumps({"result": text, "status": status.to_json()}))
        else:
            print(f"{self.name}: {text}")

    def refuse(self, text: str) -> CommandError:
        """Return the error for a phase that does not permit the command."""
        return CommandError(REFUSED, f"{self.name}: {text}")


def stop(name: str, region: str | None, *, waits: bool, as_json: bool) -> None:
    """Save a checkpoint and scale the fleet to zero. The run stays stopped, even across deploys, until `resume`."""
    change = Change(name, region, as_json=as_json)
    if change.before.phase == "ended":
        raise change.refuse(f"{change.before.reason}; there is nothing to stop")
    if change.before.desired != "stopped":
        change.write(desired.stopped(change.desired(), change.who(), time.time()))
    status = change.before

    def look() -> Look:
        nonlocal status
        status = change.look()
        is_over = status.phase in ("stopped", "ended") and not status.nodes
        return Look(is_over, f"{status.phase}: {len(status.nodes)} nodes left, {saved(status)}")

    if waits and not wait(look, STOP_SECONDS):
        raise CommandError(
            FAILED, f"{name}: {len(status.nodes)} nodes remain after {STOP_SECONDS:.0f} s; {status.reason}"
        )
    change.done(f"stopped; {saved(status)}" if waits else "stop requested", status)


def resume(name: str, region: str | None, *, waits: bool, as_json: bool) -> None:
    """Start a stopped run again from its newest checkpoint."""
    change = Change(name, region, as_json=as_json)
    was_stopped = change.before.desired == "stopped"
    change.write(desired.resumed(change.desired(), change.who(), time.time()))
    status = _wait_for_training(change, 0) if waits and was_stopped else change.before
    change.done("resumed" if was_stopped else "was not stopped", status)


def restart(name: Name, region: Region = None, waits: Waits = True, as_json: Json = False) -> None:
    """Save a checkpoint, then restart the trainers from it on the same nodes."""
    change = Change(name, region, as_json=as_json)
    if change.before.phase != "running":
        raise change.refuse(f"the run is not training: {change.before.phase}: {change.before.reason}")
    run = change.before.run
    try:
        generation = desired.newest_generation(change.opened.client, change.deployment, run)
    except desired.TooManyRecords as error:
        raise change.refuse(str(error)) from error
    if generation == 0:
        raise change.refuse("the trainers have not started yet; there is nothing to restart")
    change.write(desired.restarted(change.desired(), run, generation, change.who(), time.time()))
    status = _wait_for_training(change, generation) if waits else change.before
    change.done(f"restarted in generation {status.generation}" if waits else "restart requested", status)


def retry(name: Name, region: Region = None, waits: Waits = True, as_json: Json = False) -> None:
    """End a wait, including one after failed boots, or clear a failed outcome, and start the fleet at once."""
    change = Change(name, region, as_json=as_json)
    before = change.before
    if before.desired == "stopped":
        raise change.refuse(f"the run is stopped; run `trainstack resume {name}`")
    if before.cause == "finished":
        raise change.refuse("the run has finished; to train again, change training.run and deploy")
    if before.phase == LIMITED:
        raise change.refuse(f"{before.reason}; a retry does not lift a limit")
    if before.phase not in (*LATCHED, "ended"):
        raise change.refuse(f"nothing prevents the run from starting: {before.phase}: {before.reason}")
    try:
        desired.request_retry(change.opened.client, name)
    except desired.EventRejected as error:
        raise CommandError(FAILED, f"{name}: EventBridge did not accept the event: {error}") from error
    status = before

    def look() -> Look:
        nonlocal status
        status = change.look()
        return Look(status.phase in ("running", LIMITED), f"{status.phase}: {status.reason}")

    if waits and (not wait(look, RETRY_SECONDS) or status.phase == LIMITED):
        raise CommandError(FAILED, f"{name}: is not running after the retry: {status.phase}: {status.reason}")
    change.done("retrying" if waits else "retry requested", status)


def saved(status: Status) -> str:
    """Return the newest durable checkpoint as text."""
    if status.checkpoint_step is None:
        return "no checkpoint reported"
    return f"newest durable checkpoint at step {status.checkpoint_step:,}"


def _wait_for_training(change: Change, after_generation: int) -> Status:
    status = change.before

    def look() -> Look:
        nonlocal status
        status = change.look()
        is_late = status.status_age_seconds is None or status.status_age_seconds > 60
        trains = status.generation is not None and status.generation > after_generation and not is_late
        is_over = status.phase == "running" and trains and bool(status.nodes)
        return Look(is_over or status.phase in ("ended", LIMITED), f"{status.phase}: {status.reason}")

    if not wait(look, START_SECONDS) or status.phase == LIMITED:
        raise CommandError(
            FAILED, f"{change.name}: is not training (limit {START_SECONDS:.0f} s); {status.phase}: {status.reason}"
        )
    return status
