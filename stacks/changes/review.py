"""The whole answer about one change: every verdict, and the exit code that they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from stacks.changes.assembly import Assembly, StackTemplate
from stacks.changes.causes import Causes, Edit
from stacks.changes.costs import Costs, Quota, costs, price_dates, quotas
from stacks.changes.data import data_findings
from stacks.changes.findings import Area, Finding
from stacks.changes.iam import iam_findings
from stacks.changes.network import network_findings
from stacks.changes.nodes import NodeVerdict, node_verdict
from stacks.changes.obstacles import Obstacle, obstacles
from stacks.changes.resources import ResourceChange, resource_changes, without_metadata


class Level(IntEnum):
    """How much a change asks of a reviewer: the exit code of the command; the highest that applies counts."""

    NOTHING = 0
    SAFE = 10
    NODES_REPLACED = 20
    RIGHTS_BROADENED = 30
    DATA_AT_RISK = 40


@dataclass(frozen=True)
class OtherDeployment:
    """A stack that the change leaves behind: the new file deploys under another name or to another place."""

    stack: str
    before: str
    after: str


@dataclass(frozen=True)
class Review:
    """What a deploy would do.

    `stacks` are those of the new side; `outputs` the stacks of which parameters, outputs or the like differ;
    `notes` what a reader should know of how the two sides were compared.
    """

    before: Assembly
    after: Assembly
    changes: Sequence[ResourceChange]
    metadata_only: int
    outputs: Sequence[str]
    obstacles: Sequence[Obstacle]
    nodes: NodeVerdict
    findings: Sequence[Finding]
    costs_before: Costs | None
    costs_after: Costs | None
    hours: tuple[float | None, float | None]
    price_dates: Mapping[str, str]
    quotas_before: Sequence[Quota]
    quotas_after: Sequence[Quota]
    edits: Sequence[Edit] | None
    causes: Causes
    left_behind: Sequence[OtherDeployment]
    notes: Sequence[str] = field(default=())

    @property
    def level(self) -> Level:
        """The exit code."""
        if any(one.direction == "at risk" for one in self.findings):
            return Level.DATA_AT_RISK
        if any(one.direction == "broadened" for one in self.findings):
            return Level.RIGHTS_BROADENED
        if self.nodes.replaces:
            return Level.NODES_REPLACED
        return Level.SAFE if self.differs else Level.NOTHING

    @property
    def differs(self) -> bool:
        """Whether anything in the templates differs."""
        return bool(self.changes or self.metadata_only or self.outputs or self.left_behind or self.findings)

    def of_area(self, area: Area) -> list[Finding]:
        """Return the findings of one area, what is at risk or opened first."""
        found = [one for one in self.findings if one.area == area]
        return sorted(found, key=lambda one: one.direction in ("narrowed", "kept"))


def review(
    before: Assembly,
    after: Assembly,
    *,
    edits: Sequence[Edit] | None = None,
    hours: tuple[float | None, float | None] = (None, None),
    notes: Sequence[str] = (),
) -> Review:
    """Compare two sides.

    Args:
        before: The stacks as they are; those of another name or place are left behind, not changed.
        after: The stacks as they would be.
        edits: The keys of the deployment file that differ; None when one of the two files is not known.
        hours: Planned hours of the run, before and after.
        notes: Said to the reader beside the verdicts.
    """
    left_behind = [
        OtherDeployment(stack_id, _place(before[stack_id]), _place(stack))
        for stack_id, stack in after.items()
        if stack_id in before and not _is_same(before[stack_id], stack)
    ]
    gone = {one.stack for one in left_behind}
    # A deploy removes no stack either: one that the new side lacks stays as it is.
    there = {stack_id: stack for stack_id, stack in before.items() if stack_id not in gone and stack_id in after}
    orphans = [stack.name for stack_id, stack in before.items() if stack_id not in after]
    told = [*notes, *(f"{name} is no longer part of the app: a deploy leaves it as it is" for name in orphans)]
    every = resource_changes(there, after)
    changes = without_metadata(every)
    findings = [
        *data_findings(there, after, changes),
        *iam_findings(there, after, changes),
        *network_findings(there, after, changes),
    ]
    return Review(
        before=there,
        after=after,
        changes=changes,
        metadata_only=len(every) - len(changes),
        outputs=[stack_id for stack_id in there if _rest(there[stack_id]) != _rest(after[stack_id])],
        obstacles=obstacles(there, after, changes),
        nodes=node_verdict(there, after, changes),
        findings=findings,
        costs_before=costs(there),
        costs_after=costs(after),
        hours=hours,
        price_dates=price_dates(after),
        quotas_before=quotas(there),
        quotas_after=quotas(after),
        edits=edits,
        causes=Causes(changes, edits),
        left_behind=left_behind,
        notes=[*told, *_images(after)],
    )


def _place(stack: StackTemplate) -> str:
    return f"{stack.name} in {stack.environment.removeprefix('aws://') or 'an unknown place'}"


def _is_same(before: StackTemplate, after: StackTemplate) -> bool:
    """Tell whether two templates are of one deployed stack; an account that is not said may be any."""
    if before.name != after.name:
        return False
    places = [one.environment.removeprefix("aws://").split("/") for one in (before, after)]
    if any(len(place) != 2 for place in places):
        return True
    (old_account, old_region), (new_account, new_region) = places
    unknown = {"unknown-account", ""}
    accounts = {old_account, new_account} - unknown
    return old_region == new_region and len(accounts) <= 1


def _rest(stack: StackTemplate) -> dict[str, object]:
    """Return the template without its resources, and without what the CDK checks of its own bootstrap."""
    skipped = ("Resources", "Rules")
    rest = {name: value for name, value in stack.template.items() if name not in skipped}
    parameters = {name: one for name, one in rest.get("Parameters", {}).items() if name != "BootstrapVersion"}
    return {**rest, "Parameters": parameters}


def _images(after: Assembly) -> list[str]:
    """Return what may move at a deploy though no template says so: an image that a public parameter stands for."""
    return [
        f"the image is whatever {one['Default']} stands for at the deploy: when it has moved, nodes are replaced; "
        "`python -m stacks ami lock CONFIG` holds it"
        for stack in after.values()
        for one in stack.template.get("Parameters", {}).values()
        if one.get("Type") == "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"
    ]
