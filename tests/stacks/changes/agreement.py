"""`python -m tests.stacks.changes.agreement`: deploys the cases on the embedded cloud, and prints how each verdict did.

Each case is deployed as an edit of its base, and then taken back, which is a change too. Compared are what becomes of
each resource (its id kept, another one, gone), of the machines, of the run document, and whether the deploy is
refused. The machines are real to the cloud and idle: their user data sleeps. Takes about a minute a case.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from stacks.changes.review import Review
from tests.deploy.accounts import prepare
from tests.localcloud.core.command_line import ROOT
from tests.stacks.changes.expectations import read_cases
from tests.stacks.changes.idle_account import Account, Seen, copied_project

BASES = ("demo", "ec2-fleet", "spot-fleet", "minimal", "volumes", "lustre", "existing-vpc", "reserved")
MOVES_IN_PLACE = {"AWS::Budgets::Budget"}
"""Types whose id holds what an update changes."""
ALLOWED = {"allow-destroy": "true"}


def not_run(case: Mapping[str, Any]) -> str | None:
    """Return why the cloud cannot run a case; None when it can."""
    if "error" in case["expect"]:
        return "the file is refused before anything is made"
    if "left_behind" in case["expect"]:
        return "makes another deployment beside the old one: no resource is in both"
    if case["base"] not in BASES:
        return "PipelineStack: the cloud has no CodePipeline"
    if "subnets" in case["expect"].get("says", ""):
        return "which machines go depends on the zone that each of them got"
    return None


def disagreements(found: Review, before: Seen, after: Seen) -> list[str]:
    """Return what a deploy did that the review did not say."""
    wrong = []
    changes = {f"{one.stack}/{one.logical_id}": one for one in found.changes}
    for key in sorted({*before.ids, *after.ids, *changes}):
        change = changes.get(key)
        said = "kept" if change is None or change.action == "changed in place" else change.action
        was, becomes = before.ids.get(key), after.ids.get(key)
        did = "added" if was is None else "removed" if becomes is None else "kept" if was == becomes else "replaced"
        if said != did and (change is None or change.type not in MOVES_IN_PLACE):
            wrong.append(f"{key}: said {said}, was {did} ({was} -> {becomes})")
    gone = {one for one in before.machines if one not in after.machines}
    leaving = len(before.machines) - len(after.machines)
    doomed = {one for one, kind in before.machines.items() if kind in found.nodes.replaced_types}
    if gone != doomed and not (leaving > 0 and not doomed and len(gone) == leaving):
        wrong.append(f"machines: said {found.nodes.fate} of {len(doomed)}, {len(gone)} of {len(before.machines)} went")
    restarts = any("run document" in one.path for change in found.changes for one in change.differences)
    if restarts != (before.run_version != after.run_version):
        wrong.append(f"run document: said {restarts}, version {before.run_version} -> {after.run_version}")
    return wrong


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(config)))
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = document
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return document


def run_base(base: str, cases: list[dict[str, Any]], folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each change with where it was judged wrongly."""
    workplace = copied_project(folder)
    try:
        config: dict[str, Any] = yaml.safe_load((ROOT / "config" / f"{base}.yaml").read_text())
        account = Account(workplace, config["name"])
        config = prepare(base, config, workplace)
        account.free_reservations()
        for case in cases:
            decides = "storage.deletion" in {**case.get("from", {}), **case.get("changes", {})}
            start = config if decides else merged(config, {"storage.deletion": "destroy"})
            old, new = merged(start, case.get("from", {})), merged(start, account.made_real(case.get("changes", {})))
            workplace.context = {} if decides else ALLOWED
            account.synthesise(old)
            # After a change that was refused, the way round that a review tells; after one that cannot be taken back,
            # all over again.
            is_there = account.deploy() or (account.without_training() and account.deploy())
            if not is_there and not (account.without_anything() and account.deploy()):
                yield f"{case['name']}: its base", ["cannot be deployed"]
                continue
            yield from _there_and_back(case, account, old, new)
    finally:
        workplace.cloud.run("down")


def _there_and_back(
    case: Mapping[str, Any], account: Account, old: dict[str, Any], new: dict[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    before_context, after_context = account.workplace.context, {**account.workplace.context, **case.get("context", {})}
    ways = ((case["name"], old, new, after_context), (f"{case['name']}, taken back", new, old, before_context))
    for label, before_config, after_config, context in ways:
        before = account.seen(int(before_config["capacity"].get("nodes", 1)))
        if not before.machines:
            yield label, ["no machine came: what becomes of machines was not seen"]
            return
        account.workplace.context = context
        is_sorted = bool(case.get("reordered")) and after_config is new
        found = account.review(account.synthesise(after_config, is_sorted=is_sorted))
        is_done = account.deploy()
        if is_done == bool(found.obstacles):
            told = "; ".join(one.reason for one in found.obstacles) or "nothing in the way"
            yield label, [f"said {told}, and the deploy {'came to a good end' if is_done else 'failed'}"]
        elif not is_done:
            yield label, []
        else:
            after = account.seen(int(after_config["capacity"].get("nodes", 1)))
            yield label, disagreements(found, before, after)
        if not is_done:
            return


def main() -> int:
    """Run the cases; return 1 when a verdict was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.stacks.changes.agreement", description=__doc__)
    parser.add_argument("cases", nargs="*", help="names of cases (default: all that the cloud can run)")
    parser.add_argument("--base", choices=BASES, help="only those of this example")
    options = parser.parse_args()
    named = [case for case in read_cases("cases").values() if not options.cases or case["name"] in options.cases]
    chosen = [case for case in named if not_run(case) is None]
    judged = wrong = 0
    for base in BASES if options.base is None else (options.base,):
        cases = [case for case in chosen if case["base"] == base]
        if not cases:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for name, problems in run_base(base, cases, Path(folder)):
                judged, wrong = judged + 1, wrong + bool(problems)
                print(f"{base}: {name}: {'; '.join(problems) or 'as said'}", flush=True)
    for case in named:
        if options.base in (None, case["base"]) and (reason := not_run(case)):
            print(f"{case['base']}: {case['name']}: not run: {reason}")
    print(f"{judged - wrong} of {judged} changes went as said")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
