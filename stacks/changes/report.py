"""Formats a review as a headline and sections. Each line names the configuration keys that caused it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stacks.capacity.simulation.spread import Spread
from stacks.changes.effects.costs import Range
from stacks.changes.effects.fixed_costs import PRICES_DATE, PRICES_REGION
from stacks.changes.effects.fleet_summary import node_document, run_document
from stacks.changes.effects.nodes import IMPACT_TEXTS
from stacks.changes.findings import Area
from stacks.changes.review import Level, Review
from stacks.changes.templates.values import mapping, text_of
from stacks.changes.updates.differences import MISSING, Difference
from stacks.changes.updates.resources import ACTIONS, ResourceChange

MARKS = dict(zip(ACTIONS, ("+", "~", "-/+", "-", "!"), strict=True))
LEVELS = {
    Level.NOTHING: "no changes",
    Level.SAFE: "safe",
    Level.NODES_REPLACED: "nodes are replaced",
    Level.NEEDS_APPROVAL: "needs approval",
    Level.DATA_AT_RISK: "data at risk",
}
MAX_DIFFERENCES, MAX_VALUE_CHARACTERS = 4, 60
_PLANNED_RUN = "planned run"


@dataclass(frozen=True)
class Line:
    """One line of a review. `cause` names the keys that caused it. `is_important` marks lines to check."""

    text: str
    cause: str | None = None
    is_important: bool = False


@dataclass(frozen=True)
class Section:
    """A title and the lines under it."""

    title: str
    lines: Sequence[Line]


def headline(review: Review) -> str:
    """Return the verdict as one line."""
    if review.level is Level.NOTHING:
        return "No changes."
    parts = [IMPACT_TEXTS[review.nodes.impact]]
    at_risk = sum(one.direction == "at risk" for one in review.findings)
    parts.append(_count(at_risk, "risk") + " to data" if at_risk else "no risk to data")
    broadened = sum(one.direction == "broadened" for one in review.findings)
    parts.append(_count(broadened, "broader grant") if broadened else "no broader permissions or network access")
    unknown = sum(one.direction == "needs approval" for one in review.findings)
    parts += [f"{_count(unknown, 'change')} to approve"] if unknown else []
    counts = [(sum(one.action == action for one in review.changes), action) for action in ACTIONS]
    resources = ", ".join(f"{number} {action}" for number, action in counts if number)
    parts.append(f"resources: {resources}" if resources else "no resource changes")
    verdict = LEVELS[review.level]
    if review.blockers:
        verdict = f"CloudFormation would reject the deploy; {verdict}"
    return f"{verdict[0].upper()}{verdict[1:]} ({int(review.level)}): {'; '.join(parts)}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sections(review: Review) -> list[Section]:
    """Return all non-empty sections, most important first."""
    every = [
        Section("CloudFormation would reject", _blockers(review)),
        Section("Other deployment", _left_behind(review)),
        Section("Edited keys", _edits(review)),
        Section("Running nodes", _nodes(review)),
        Section("Next execution of the pipeline", list(_repeated_steps(review))),
        Section("Data", _findings(review, "data")),
        Section("Permissions", _findings(review, "iam")),
        Section("Network", _findings(review, "network")),
        Section("Other changes to approve", _findings(review, "approval")),
        Section("Bundles and user data", list(_node_inputs(review))),
        Section("Costs", list(_costs(review))),
        Section("Quotas", list(_quotas(review))),
        *(Section(f"Resources of {stack}", list(_resources(review, stack))) for stack in review.after),
        Section("Notes", list(_notes(review))),
    ]
    return [one for one in every if one.lines]


def _blockers(review: Review) -> list[Line]:
    return [
        Line(f"{one.stack} {one.logical_id}: {one.reason}. Remedy: {one.remedy}", is_important=True)
        for one in review.blockers
    ]


def _left_behind(review: Review) -> list[Line]:
    return [
        Line(f"{one.before} stays unchanged; {one.after} is created without its data", is_important=True)
        for one in review.left_behind
    ]


def _edits(review: Review) -> list[Line]:
    return [Line(f"{one}: {_short(one.before)} -> {_short(one.after)}") for one in review.edits or ()]


def _nodes(review: Review) -> list[Line]:
    verdict = review.nodes
    keys = [key for where, one in verdict.causes for key in review.causes.of(where, () if one is None else one.path)]
    cause = review.causes.text(list(dict.fromkeys(keys))) if verdict.causes else None
    lines = [Line(f"{IMPACT_TEXTS[verdict.impact]}: {verdict.reason}", cause, verdict.replaces)]
    if verdict.risk is not None:
        lines.append(Line(f"capacity: {verdict.risk}", is_important=verdict.replaces))
    return lines if review.differs else []


def _repeated_steps(review: Review) -> Iterator[Line]:
    for one in review.repeated_steps:
        members = _count(one.members, "member")
        text = {
            "new": f"runs {members}",
            "changed": f"{members}; runs those whose inputs have changed",
            "after": f"{members}; runs again if the step before it produces other weights",
            "removed": "is no longer part of the pipeline",
        }[one.reason]
        path = ("DefinitionString",)
        cause = (
            None if one.reason == "after" else review.causes.text(review.causes.of((one.stack, one.logical_id), path))
        )
        yield Line(f"{one.step}: {text}", cause)


def _findings(review: Review, area: Area) -> list[Line]:
    lines, of_new_stacks = [], Counter[str]()
    direction = "needs approval" if area == "approval" else "broadened"
    for one in review.of_area(area):
        if one.stack not in review.before:
            of_new_stacks[one.stack] += 1
            continue
        where = " ".join(part for part in (one.stack, one.logical_id) if part)
        cause = review.causes.text(review.causes.of(one.key, one.path))
        is_important = one.direction in ("at risk", "broadened", "needs approval")
        lines.append(Line(f"{one.direction}: {where}: {one.text}", cause, is_important))
    lines += [
        Line(f"{direction}: new stack {stack}: {_count(number, 'finding')}; `--json` lists them", is_important=True)
        for stack, number in of_new_stacks.items()
    ]
    return lines


def _node_inputs(review: Review) -> Iterator[Line]:
    for name, document, key in (
        ("node bundle", node_document, "bundle"),
        ("code bundle", run_document, "code"),
    ):
        was, becomes = (mapping(document(side).get(key)).get("sha256") for side in (review.before, review.after))
        if was != becomes and was is not None:
            yield Line(f"{name}: {_digest(was)} -> {_digest(becomes)}")
    for change in review.changes:
        changed = [one for one in change.differences if "UserData" in one.path and change.action != "added"]
        if changed:
            texts = [f"follows {one.via}" if one.via is not None else "/".join(one.path[2:]) for one in changed]
            keys = dict.fromkeys(key for one in changed for key in review.causes.of(change.key, one.path))
            yield Line(f"user data of {change.logical_id}: {', '.join(texts)}", review.causes.text(list(keys)))


def _digest(value: Any) -> str:
    return str(value)[:12] if value else "none"


def _costs(review: Review) -> Iterator[Line]:
    old, new = review.costs_before, review.costs_after
    if new is None or not review.differs:
        return
    is_same_plan = review.hours[0] == review.hours[1] and review.expected_usd[0] == review.expected_usd[1]
    if old is not None and old == new and is_same_plan:
        yield Line("unchanged")
        return
    rows = (
        ("training, per hour", lambda side, _: side.training_per_hour),
        ("no training, per month", lambda side, _: Range(side.fixed_per_month, side.fixed_per_month)),
        ("uninterrupted training, per month", lambda side, _: side.per_month),
        (_PLANNED_RUN, lambda side, hours: side.per_run(hours)),
    )
    yield Line(f"fleet: {'' if old is None or old.fleet == new.fleet else old.fleet + ' -> '}{new.fleet}")
    for title, pick in rows:
        was, becomes = (
            _usd(None if side is None else pick(side, hours))
            for side, hours in zip((old, new), review.hours, strict=True)
        )
        if title == _PLANNED_RUN and review.hours[1] is None:
            yield Line(f"{title}: unknown; set capacity.auto.hours")
        else:
            yield Line(f"{title}: " + (becomes if old is None or was == becomes else f"{was} -> {becomes}"))
    was_expected, is_expected = (_expected(each) for each in review.expected_usd)
    if review.expected_usd[1] is not None:
        yield Line(
            "planned run, expected with interruptions: "
            + (is_expected if old is None or was_expected == is_expected else f"{was_expected} -> {is_expected}")
            + "; `python -m stacks candidates --plan FILE` prints the distribution"
        )
    fixed = {} if old is None else dict(old.fixed)
    for name in dict.fromkeys((*fixed, *new.fixed)) if old is not None else ():
        before, after = fixed.get(name, 0.0), new.fixed.get(name, 0.0)
        if before != after:
            yield Line(f"{name}: {before:,.2f} -> {after:,.2f} USD per month")
    if new.unknown is not None:
        yield Line(f"not included: {new.unknown}")
    dates = ", ".join(f"{market.replace('_', ' ')} from {date}" for market, date in review.price_dates.items())
    yield Line(
        f"instance prices: {dates or 'none for this region'}; other prices: {PRICES_REGION}, {PRICES_DATE}; "
        "usage-based charges are not included"
    )


def _expected(spread: Spread | None) -> str:
    if spread is None:
        return "unknown"
    return f"{spread.mean:,.2f} USD (10% to 90% of runs: {spread.low:,.2f} to {spread.high:,.2f})"


def _usd(amount: Range | None) -> str:
    if amount is None:
        return "unknown"
    if amount.high - amount.low < 0.005:
        return f"{amount.low:,.2f} USD"
    return f"{amount.low:,.2f} to {amount.high:,.2f} USD"


def _quotas(review: Review) -> Iterator[Line]:
    before = {(one.code, one.market): one.vcpus for one in review.quotas_before}
    for one in review.quotas_after:
        was = before.get((one.code, one.market))
        if was != one.vcpus:
            previous = "" if was is None else f"{was} -> "
            yield Line(
                f"{one.code} ({one.market}): {previous}{one.vcpus} vCPUs; `check --aws` compares it with the quota"
            )


def _resources(review: Review, stack: str) -> Iterator[Line]:
    order = {action: rank for rank, action in enumerate(("not supported", "replaced", "removed", "added"))}
    listed = [change for change in review.changes if change.stack == stack]
    for change in sorted(listed, key=lambda one: order.get(one.action, len(order))):
        cause = review.causes.text(review.causes.of_change(change)) if stack in review.before else None
        text = f"{MARKS[change.action]} {change.logical_id} ({change.type.removeprefix('AWS::')}) {change.action}"
        yield Line(text + _differences(change), cause, change.action in ("not supported", "replaced", "removed"))


def _differences(change: ResourceChange) -> str:
    if change.action in ("added", "removed"):
        return ""
    texts = [_difference(one) for one in change.differences]
    more = len(texts) - MAX_DIFFERENCES
    return ": " + "; ".join(texts[:MAX_DIFFERENCES]) + (f"; {more} more" if more > 0 else "")


def _difference(one: Difference) -> str:
    path = "/".join(one.path)
    mark = {"replaces": " (replaces)", "not supported": " (cannot be changed)"}.get(one.effect, "")
    if one.via is not None:
        return f"{path}{mark} follows {one.via}"
    was, becomes = _value(one.before), _value(one.after)
    if len(was) > MAX_VALUE_CHARACTERS or len(becomes) > MAX_VALUE_CHARACTERS:
        return f"{path}{mark}"
    return f"{path}{mark} {was} -> {becomes}"


def _value(value: Any) -> str:
    if value is MISSING or value is None:
        return "none"
    return text_of(value)


def _short(value: Any) -> str:
    text = _value(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."


def _notes(review: Review) -> Iterator[Line]:
    if not review.differs:
        return
    if review.metadata_only:
        yield Line(f"{_count(review.metadata_only, 'resource')} with changes only in metadata")
    if review.outputs:
        yield Line(f"outputs or parameters differ in {', '.join(review.outputs)}")
    if not review.causes.are_known:
        yield Line("the other side's deployment file is unknown: keys in brackets are possible causes, not known edits")
    yield from (Line(note) for note in review.notes)
