"""The review of one change, with all verdicts and the resulting exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from stacks.capacity.simulation.spread import Spread
from stacks.changes.approvals.delivery import delivery_findings
from stacks.changes.approvals.properties import approval_findings
from stacks.changes.approvals.spending import spending_findings
from stacks.changes.causes import Causes, Edit
from stacks.changes.effects.costs import Costs, Quota, costs, price_dates, quotas
from stacks.changes.effects.data import data_findings
from stacks.changes.effects.iam import iam_findings
from stacks.changes.effects.network import network_findings
from stacks.changes.effects.nodes import NodeVerdict, node_verdict
from stacks.changes.effects.pipeline import StepVerdict, repeated_steps
from stacks.changes.findings import Area, Finding
from stacks.changes.templates.resolution import resolved, with_previous_values
from stacks.changes.templates.template_set import StackTemplate, TemplateSet
from stacks.changes.updates.blockers import Blocker, blockers
from stacks.changes.updates.resources import ResourceChange, resource_changes, without_metadata


class Level(IntEnum):
    """The severity of a change and the command's exit code. The highest level that applies is used."""

    NOTHING = 0
    SAFE = 10
    NODES_REPLACED = 20
    NEEDS_APPROVAL = 30
    DATA_AT_RISK = 40


@dataclass(frozen=True)
class OtherDeployment:
    """A stack that the deploy leaves unchanged because the new file uses a different name or region."""

    stack: str
    before: str
    after: str


@dataclass(frozen=True)
class Review:
    """The effects of a deploy.

    `outputs` lists the stacks whose parameters, outputs or other sections differ. `notes` explains how the sides were
    compared.
    """

    before: TemplateSet
    after: TemplateSet
    changes: Sequence[ResourceChange]
    metadata_only: int
    outputs: Sequence[str]
    blockers: Sequence[Blocker]
    nodes: NodeVerdict
    repeated_steps: Sequence[StepVerdict]
    findings: Sequence[Finding]
    costs_before: Costs | None
    costs_after: Costs | None
    hours: tuple[float | None, float | None]
    expected_usd: tuple[Spread | None, Spread | None]
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
        if any(one.direction in ("broadened", "needs approval") for one in self.findings):
            return Level.NEEDS_APPROVAL
        if self.nodes.replaces:
            return Level.NODES_REPLACED
        return Level.SAFE if self.differs else Level.NOTHING

    @property
    def differs(self) -> bool:
        """Whether the templates differ."""
        return bool(self.changes or self.metadata_only or self.outputs or self.left_behind or self.findings)

    def of_area(self, area: Area) -> list[Finding]:
        """Return the findings in one area. Data at risk and broadened access come first."""
        found = [one for one in self.findings if one.area == area]
        return sorted(found, key=lambda one: one.direction in ("narrowed", "kept"))


def review(
    before: TemplateSet,
    after: TemplateSet,
    *,
    edits: Sequence[Edit] | None = None,
    hours: tuple[float | None, float | None] = (None, None),
    expected_usd: tuple[Spread | None, Spread | None] = (None, None),
    notes: Sequence[str] = (),
) -> Review:
    """Compare the two sides of a change.

    Args:
        before: The current stacks. A deploy does not change stacks with a different name or region.
        after: The stacks after the deploy.
        edits: The deployment file keys that differ, or None if one of the two files is unknown.
        hours: Planned hours of the run, before and after.
        expected_usd: Distribution of the run's cost with interruptions, before and after.
        notes: Notes for the reviewer, in addition to the verdicts.
    """
    left_behind = [
        OtherDeployment(stack_id, _location(before[stack_id]), _location(stack))
        for stack_id, stack in after.items()
        if stack_id in before and not _is_same(before[stack_id], stack)
    ]
    gone = {one.stack for one in left_behind}
    written = before, after
    before, after = resolved(before), resolved(with_previous_values(before, after))
    # A deploy does not remove stacks. Stacks that are not in the new app stay unchanged.
    old = {stack_id: stack for stack_id, stack in before.items() if stack_id not in gone and stack_id in after}
    orphans = [stack.name for stack_id, stack in before.items() if stack_id not in after]
    unchanged = [f"{name} is no longer part of the app: a deploy leaves it unchanged" for name in orphans]
    every = resource_changes(old, after)
    changes = without_metadata(every)
    findings = [
        *data_findings(old, after, changes),
        *iam_findings(old, after, changes),
        *network_findings(old, after, changes),
        *approval_findings(old, after, every),
        *spending_findings(costs(old), costs(after)),
        *delivery_findings(edits or ()),
    ]
    return Review(
        before=old,
        after=after,
        changes=changes,
        metadata_only=len(every) - len(changes),
        outputs=[one for one in old if _other_sections(written[0][one]) != _other_sections(written[1][one])],
        blockers=blockers(old, after, changes),
        nodes=node_verdict(old, after, changes),
        repeated_steps=repeated_steps(old, after),
        findings=findings,
        costs_before=costs(old),
        costs_after=costs(after),
        hours=hours,
        expected_usd=expected_usd,
        price_dates=price_dates(after),
        quotas_before=quotas(old),
        quotas_after=quotas(after),
        edits=edits,
        causes=Causes(changes, edits),
        left_behind=left_behind,
        notes=[*notes, *unchanged, *_images(after)],
    )


def _location(stack: StackTemplate) -> str:
    return f"{stack.name} in {stack.environment.removeprefix('aws://') or 'an unknown region'}"


def _is_same(before: StackTemplate, after: StackTemplate) -> bool:
    """Return True if two templates belong to the same deployed stack. An unknown account matches any account."""
    if before.name != after.name:
        return False
    environments = [one.environment.removeprefix("aws://").split("/") for one in (before, after)]
    if any(len(environment) != 2 for environment in environments):
        return True
    (old_account, old_region), (new_account, new_region) = environments
    unknown = {"unknown-account", ""}
    accounts = {old_account, new_account} - unknown
    return old_region == new_region and len(accounts) <= 1


def _other_sections(stack: StackTemplate) -> dict[str, object]:
    """Return the template without its resources and without the CDK's bootstrap version check."""
    skipped = ("Resources", "Rules")
    rest = {name: value for name, value in stack.template.items() if name not in skipped}
    parameters = {name: one for name, one in rest.get("Parameters", {}).items() if name != "BootstrapVersion"}
    return {**rest, "Parameters": parameters}


def _images(after: TemplateSet) -> list[str]:
    """Return notes about images from public parameters, which can change between deploys without any edit."""
    return [
        f"CloudFormation resolves the image {one['Default']} at each deploy, which replaces nodes if it has changed; "
        "`python -m stacks ami lock CONFIG` pins it"
        for stack in after.values()
        for one in stack.template.get("Parameters", {}).values()
        if one.get("Type") == "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"
    ]
