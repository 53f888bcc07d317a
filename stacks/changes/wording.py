"""A review in words: a headline, and sections of lines, each with the key of the file that caused it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stacks.changes.costs import Range
from stacks.changes.differences import MISSING, Difference
from stacks.changes.findings import Area
from stacks.changes.fleet_facts import node_document, run_document
from stacks.changes.nodes import SHORT_WORDS
from stacks.changes.resources import ACTIONS, ResourceChange
from stacks.changes.review import Level, Review
from stacks.changes.standing_costs import PRICES_DATE, PRICES_REGION
from stacks.changes.texts import text_of

MARKS = dict(zip(ACTIONS, ("+", "~", "-/+", "-", "!"), strict=True))
LEVELS = {
    Level.NOTHING: "nothing changes",
    Level.SAFE: "safe",
    Level.NODES_REPLACED: "nodes are replaced",
    Level.RIGHTS_BROADENED: "rights or network are broadened",
    Level.DATA_AT_RISK: "data is at risk",
}
MOST_PLACES, LONGEST_VALUE = 4, 60


@dataclass(frozen=True)
class Line:
    """One line; `cause` names keys of the file, `weight` says whether a reviewer must look."""

    text: str
    cause: str | None = None
    is_grave: bool = False


@dataclass(frozen=True)
class Section:
    """Lines under a title."""

    title: str
    lines: Sequence[Line]


def headline(review: Review) -> str:
    """Return the verdict in one line."""
    if review.level is Level.NOTHING:
        return "Nothing changes."
    parts = [SHORT_WORDS[review.nodes.fate]]
    at_risk = sum(one.direction == "at risk" for one in review.findings)
    parts.append(_counted(at_risk, "risk") + " to data" if at_risk else "no data at risk")
    broadened = sum(one.direction == "broadened" for one in review.findings)
    parts.append(f"{broadened} broadened in rights and network" if broadened else "rights and network no wider")
    counts = [(sum(one.action == action for one in review.changes), action) for action in ACTIONS]
    told = ", ".join(f"{number} {action}" for number, action in counts if number)
    parts.append(told or "no resource changed")
    verdict = LEVELS[review.level]
    if review.obstacles:
        verdict = f"would be refused by CloudFormation; {verdict}"
    return f"{verdict[0].upper()}{verdict[1:]} ({int(review.level)}): {'; '.join(parts)}."


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def sections(review: Review) -> list[Section]:
    """Return all that there is to say, what matters most first; sections without lines are left out."""
    every = [
        Section("CloudFormation would refuse", _refusals(review)),
        Section("Other deployment", _left_behind(review)),
        Section("Keys of the file that differ", _edits(review)),
        Section("Running nodes", _nodes(review)),
        Section("Data", _findings(review, "data")),
        Section("Rights", _findings(review, "iam")),
        Section("Network", _findings(review, "network")),
        Section("What nodes are given", list(_given(review))),
        Section("Costs", list(_costs(review))),
        Section("Quotas", list(_quotas(review))),
        *(Section(f"Resources of {stack}", list(_resources(review, stack))) for stack in review.after),
        Section("Notes", list(_notes(review))),
    ]
    return [one for one in every if one.lines]


def _refusals(review: Review) -> list[Line]:
    return [
        Line(f"{one.stack} {one.logical_id}: {one.reason}. Instead: {one.remedy}", is_grave=True)
        for one in review.obstacles
    ]


def _left_behind(review: Review) -> list[Line]:
    return [
        Line(f"{one.before} stays as it is, and {one.after} is made beside it: no data goes along", is_grave=True)
        for one in review.left_behind
    ]


def _edits(review: Review) -> list[Line]:
    return [Line(f"{one}: {_short(one.before)} -> {_short(one.after)}") for one in review.edits or ()]


def _nodes(review: Review) -> list[Line]:
    verdict = review.nodes
    keys = [key for where, one in verdict.causes for key in review.causes.of(where, () if one is None else one.path)]
    cause = review.causes.text(list(dict.fromkeys(keys))) if verdict.causes else None
    lines = [Line(f"{SHORT_WORDS[verdict.fate]}: {verdict.reason}", cause, verdict.replaces)]
    if verdict.risk is not None:
        lines.append(Line(f"capacity: {verdict.risk}", is_grave=verdict.replaces))
    return lines if review.differs else []


def _findings(review: Review, area: Area) -> list[Line]:
    lines, of_new_stacks = [], Counter[str]()
    for one in review.of_area(area):
        if one.stack not in review.before:
            of_new_stacks[one.stack] += 1
            continue
        where = " ".join(part for part in (one.stack, one.logical_id) if part)
        cause = review.causes.text(review.causes.of(one.key, one.path))
        grave = one.direction in ("at risk", "broadened")
        lines.append(Line(f"{one.direction}: {where}: {one.text}", cause, grave))
    lines += [
        Line(f"broadened: {stack} is new, with {number} openings of its own; `--json` lists them", is_grave=True)
        for stack, number in of_new_stacks.items()
    ]
    return lines


def _given(review: Review) -> Iterator[Line]:
    for name, document, key in (
        ("node bundle", node_document, "bundle"),
        ("code bundle", run_document, "code"),
    ):
        was, becomes = (document(side).get(key, {}).get("sha256") for side in (review.before, review.after))
        if was != becomes and was is not None:
            yield Line(f"{name}: {_digest(was)} -> {_digest(becomes)}")
    for change in review.changes:
        read = [one for one in change.differences if "UserData" in one.path and change.action != "added"]
        if read:
            told = [f"follows {one.via}" if one.via is not None else "/".join(one.path[2:]) for one in read]
            keys = dict.fromkeys(key for one in read for key in review.causes.of(change.key, one.path))
            yield Line(f"user data of {change.logical_id}: {', '.join(told)}", review.causes.text(list(keys)))


def _digest(value: Any) -> str:
    return str(value)[:12] if value else "nothing"


def _costs(review: Review) -> Iterator[Line]:
    old, new = review.costs_before, review.costs_after
    if new is None or not review.differs:
        return
    if old is not None and old == new and review.hours[0] == review.hours[1]:
        yield Line("as before")
        return
    rows = (
        ("an hour of training", lambda side, _: side.training_per_hour),
        ("a month without training", lambda side, _: Range(side.standing_per_month, side.standing_per_month)),
        ("a month of nothing but training", lambda side, _: side.per_month),
        ("the planned run", lambda side, hours: side.per_run(hours)),
    )
    yield Line(f"fleet: {'' if old is None or old.fleet == new.fleet else old.fleet + ' -> '}{new.fleet}")
    for title, pick in rows:
        told = [_money(None if side is None else pick(side, hours)) for side, hours in zip((old, new), review.hours)]  # noqa: B905
        if title == "the planned run" and review.hours[1] is None:
            told_of = "capacity.auto.hours says how long it is planned"
            yield Line(f"{title}: not known: {told_of}")
        else:
            yield Line(f"{title}: " + (told[1] if old is None or told[0] == told[1] else f"{told[0]} -> {told[1]}"))
    changed = {} if old is None else dict(old.standing)
    for name in dict.fromkeys((*changed, *new.standing)) if old is not None else ():
        was, becomes = changed.get(name, 0.0), new.standing.get(name, 0.0)
        if was != becomes:
            yield Line(f"{name}: {was:,.2f} -> {becomes:,.2f} USD a month")
    if new.unknown is not None:
        yield Line(f"not in it: {new.unknown}")
    dates = ", ".join(f"{way.replace('_', ' ')} of {date}" for way, date in review.price_dates.items())
    yield Line(
        f"prices of machines: {dates or 'none of this region'}; of the rest: {PRICES_REGION}, {PRICES_DATE}; "
        "without what is billed by use"
    )


def _money(amount: Range | None) -> str:
    if amount is None:
        return "not known"
    if amount.most - amount.least < 0.005:
        return f"{amount.least:,.2f} USD"
    return f"{amount.least:,.2f} to {amount.most:,.2f} USD"


def _quotas(review: Review) -> Iterator[Line]:
    before = {(one.code, one.market): one.vcpus for one in review.quotas_before}
    for one in review.quotas_after:
        was = before.get((one.code, one.market))
        if was != one.vcpus:
            told = "" if was is None else f"{was} -> "
            yield Line(f"{one.code} ({one.market}): {told}{one.vcpus} vCPUs; `check --aws` asks whether there are")


def _resources(review: Review, stack: str) -> Iterator[Line]:
    order = {action: place for place, action in enumerate(("not supported", "replaced", "removed", "added"))}
    listed = [change for change in review.changes if change.stack == stack]
    for change in sorted(listed, key=lambda one: order.get(one.action, len(order))):
        cause = review.causes.text(review.causes.of_change(change)) if stack in review.before else None
        text = f"{MARKS[change.action]} {change.logical_id} ({change.type.removeprefix('AWS::')}) {change.action}"
        yield Line(text + _places(change), cause, change.action in ("not supported", "replaced", "removed"))


def _places(change: ResourceChange) -> str:
    if change.action in ("added", "removed"):
        return ""
    told = [_place(one) for one in change.differences]
    more = len(told) - MOST_PLACES
    return ": " + "; ".join(told[:MOST_PLACES]) + (f"; {more} more" if more > 0 else "")


def _place(one: Difference) -> str:
    path = "/".join(one.path)
    mark = {"replaces": " (replaces)", "not supported": " (cannot be changed)"}.get(one.effect, "")
    if one.via is not None:
        return f"{path}{mark} follows {one.via}"
    was, becomes = _value(one.before), _value(one.after)
    if len(was) > LONGEST_VALUE or len(becomes) > LONGEST_VALUE:
        return f"{path}{mark}"
    return f"{path}{mark} {was} -> {becomes}"


def _value(value: Any) -> str:
    if value is MISSING or value is None:
        return "nothing"
    return text_of(value)


def _short(value: Any) -> str:
    text = _value(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _notes(review: Review) -> Iterator[Line]:
    if not review.differs:
        return
    if review.metadata_only:
        yield Line(f"in their metadata alone differ: {_counted(review.metadata_only, 'resource')}")
    if review.outputs:
        yield Line(f"outputs or parameters of {', '.join(review.outputs)} differ")
    if not review.causes.are_known:
        yield Line("only the templates of the other side are known: keys are those that decide about a place")
    yield from (Line(note) for note in review.notes)
