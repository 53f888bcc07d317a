"""The command `run`: starts a variant of a deployment's run in another slot."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bootstrap.documents import RunDocument
from stacks.errors import ConfigError
from stacks.functions.pipeline_runs.store import SlotTaken
from stacks.functions.zombie_watch.stack_names import TRAINING_STACK
from trainstack import account
from trainstack.account import Clients, Deployment
from trainstack.operate import slots
from trainstack.operate.deploying import HARMLESS, File, approve, load
from trainstack.session import FAILED, INVALID, REFUSED, Account, CommandError, Json

if TYPE_CHECKING:  # importing the configuration would double the start-up time of commands such as `status`
    from stacks.changes.review import Review
    from stacks.config import DeploymentConfig

DEPLOY_SECTIONS = ("Running nodes", "Costs", "Notes")
"""Sections of a review that do not apply: nothing trains in the slot, and CloudFormation changes nothing."""
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Key of training.config and its value; can be repeated."),
]


@dataclass(frozen=True)
class Plan:
    """A run to start: the slot, the run document, and its review."""

    place: slots.Occupancy
    run: RunDocument
    review: Review

    def to_json(self, *, started: bool) -> dict[str, Any]:
        """Return JSON values."""
        from stacks.changes.formats import to_json

        slot = self.place.slot.name
        return {"slot": slot, "run": self.run.run, "started": started, "review": to_json(self.review)}

    def lines(self) -> list[str]:
        """Return lines for a terminal: the review without the sections that only describe a deploy."""
        from stacks.changes.report import LEVELS, sections

        lines = [f"run {self.run.run} in slot {self.place.slot.name}, which {self.place.reason}"]
        for section in sections(self.review):
            if section.title not in DEPLOY_SECTIONS and not section.title.startswith("Resources of"):
                lines += [section.title, *(f"  {line.text}" for line in section.lines)]
        costs = self.review.costs_after
        if costs is not None and costs.training_per_hour is not None:
            low, high = costs.training_per_hour.low, costs.training_per_hour.high
            lines.append(f"{costs.fleet}: {low:,.2f} to {high:,.2f} USD per hour while the run trains")
        return [*lines, f"review: {LEVELS[self.review.level]} ({int(self.review.level)})"]


def add(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("run", rich_help_panel="Change a run")(run)


def run(
    file: File,
    name: Annotated[str, typer.Option(help="Name of the new run; the slots of a deployment must not share names.")],
    settings: Settings = None,
    slot: Annotated[
        str | None, typer.Option(metavar="SLOT", help="Slot, such as 2; default: the first idle one.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the review, and start nothing.")] = False,
    approved: Annotated[
        int, typer.Option(metavar="CODE", help="Approved exit code of the review: 20, 30 or 40.")
    ] = HARMLESS,
    as_json: Json = False,
) -> None:
    """Start a variant of the deployed run in an idle slot, next to the other runs of the deployment.

    The new run has the code, dataset and settings of the run that `trainstack up` deployed, except for its name and the
    settings given with --set. The slots are idle fleets of the deployment (capacity.slots). A slot is idle if it has no
    run, or if its run has ended.
    """
    config = load(file, warn=False)
    if config.engine != "fleet":
        rule = f"engine {config.engine} has no slots; submit another file with `trainstack up`"
        raise CommandError(REFUSED, f"{file}: {rule}")
    opened = Account(config.region).prepare("cloudformation", "s3", "ssm", "sts")
    plan = plan_for(opened.client, config, str(file), name, settings or [], slot)
    if not as_json:
        print("\n".join(plan.lines()), flush=True)
    if not dry_run:
        approve(file, int(plan.review.level), approved, "Start the run?", "nothing was started")
        who = str(opened.client("sts").get_caller_identity()["Arn"])
        try:
            slots.start(opened.client, plan.place, plan.run, who, time.time())
        except SlotTaken as error:
            raise CommandError(FAILED, f"{error}; nothing was started, run the command again") from error
    if as_json:
        print(json.dumps(plan.to_json(started=not dry_run)))
    elif not dry_run:
        fleet = plan.place.slot.name
        print(f"{fleet}: run {name} is starting; `trainstack status {fleet} --watch` shows its progress")


def plan_for(
    client: Clients, config: DeploymentConfig, source: str, name: str, settings: Sequence[str], wanted: str | None
) -> Plan:
    """Choose a slot, and return the plan of a run.

    Args:
        client: Clients of CloudFormation, S3 and SSM.
        config: The deployment file.
        source: The file's name, for messages.
        name: Name of the new run.
        settings: Keys and values, as `key=value`.
        wanted: Suffix of the slot, or None for the first idle slot.

    Raises:
        CommandError: A setting is invalid, no slot is idle, or the deployment has no run document.
        NotDeployed: The deployment does not exist.
    """
    from stacks.changes.run_review import review_run
    from stacks.changes.templates.template_set import StackTemplate
    from stacks.loading.variant import differs, variant

    first = account.find(client, config.name)
    others = [each for each in account.slots(client, config.name) if each.slot.isdecimal()]
    problems: list[str] = []
    deployed = account.run_document(client, first, problems)
    if deployed is None:
        raise CommandError(FAILED, "; ".join(problems))
    if differs(config, deployed.to_json()):
        print(f"warning: {source} differs from the deployed run, from which the new run starts", file=sys.stderr)
    try:
        document = variant(config, source, deployed.to_json(), name, settings)
    except ConfigError as error:
        raise CommandError(INVALID, str(error)) from error
    place = _choose(client, first, deployed, others, name, wanted)
    document["deployment"] = place.slot.name
    new = RunDocument.from_json(document)
    stack = StackTemplate(TRAINING_STACK, place.slot.stack, account.get_template(client, place.slot.stack))
    return Plan(place, new, review_run(stack, deployed.to_json(), new.to_json()))


def _choose(
    client: Clients,
    first: Deployment,
    deployed: RunDocument,
    others: Sequence[Deployment],
    name: str,
    wanted: str | None,
) -> slots.Occupancy:
    """Return the wanted slot, or the first idle one.

    Raises:
        CommandError: The slot does not exist, no slot is idle, or a slot already has a run with this name.
    """
    if not others:
        rule = "has one slot, whose run the deployment file determines; raise capacity.slots and deploy"
        raise CommandError(REFUSED, f"{first.name}: {rule}")
    if wanted is not None and wanted not in [each.slot for each in others]:
        known = ", ".join(each.slot for each in others)
        raise CommandError(INVALID, f"--slot: {wanted!r}: is not a slot for runs; use one of {known}")
    now = time.time()
    seen = [slots.occupancy(client, each, now) for each in others]
    named = {each.run.run: each.slot.name for each in seen if each.run is not None} | {deployed.run: first.name}
    if name in named:
        raise CommandError(REFUSED, f"--name: {name!r}: is the run of {named[name]}; choose another name")
    candidates = [each for each in seen if wanted in (None, each.slot.slot)]
    idle = [each for each in candidates if each.is_idle and not slots.has_records(client, each.slot, name)]
    if idle:
        return idle[0]
    reasons = [
        f"  {each.slot.name}: " + ("has already trained a run with this name" if each.is_idle else each.reason)
        for each in candidates
    ]
    raise CommandError(REFUSED, "\n".join([f"{first.name}: no slot can start run {name}", *reasons]))
