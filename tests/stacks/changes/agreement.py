"""`python -m tests.stacks.changes.agreement`: deploys the cases on the embedded cloud and checks their reviews.

Each case is deployed as an edit to its base and then reverted, which is a change as well. The comparison covers each
resource (id kept, changed or removed), the instances, the run document, and rejected deploys. The cloud launches real
instances, but their user data only sleeps. A case takes about a minute.
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
from tests.stacks.changes.idle_account import Account, Observation, copied_project

BASES = ("demo", "ec2-fleet", "spot-fleet", "minimal", "volumes", "lustre", "existing-vpc", "reserved")
ID_CHANGES_IN_PLACE = {"AWS::Budgets::Budget"}
"""Types whose id contains a property that an update changes."""
ALLOWED = {"allow-destroy": "true"}


def not_run(case: Mapping[str, Any]) -> str | None:
    """Return the reason why the cloud cannot run a case, or None."""
    if "error" in case["expect"]:
        return "the deployment file is invalid"
    if "left_behind" in case["expect"]:
        return "creates a second deployment: no resource is in both"
    if case["base"] not in BASES:
        return "PipelineStack: the cloud has no CodePipeline"
    if "subnets" in case["expect"].get("contains", ""):
        return "which instances terminate depends on the zones in which instances launched"
    return None


def disagreements(found: Review, before: Observation, after: Observation) -> list[str]:
    """Return the differences between a review and the deploy."""
    wrong = []
    changes = {f"{one.stack}/{one.logical_id}": one for one in found.changes}
    for key in sorted({*before.ids, *after.ids, *changes}):
        change = changes.get(key)
        expected = "kept" if change is None or change.action == "changed in place" else change.action
        was, becomes = before.ids.get(key), after.ids.get(key)
        actual = "added" if was is None else "removed" if becomes is None else "kept" if was == becomes else "replaced"
        if expected != actual and (change is None or change.type not in ID_CHANGES_IN_PLACE):
            wrong.append(f"{key}: expected {expected}, found {actual} ({was} -> {becomes})")
    gone = {one for one in before.instances if one not in after.instances}
    fewer = len(before.instances) - len(after.instances)
    replaced = {one for one, kind in before.instances.items() if kind in found.nodes.replaced_types}
    if gone != replaced and not (fewer > 0 and not replaced and len(gone) == fewer):
        wrong.append(
            f"instances: expected {found.nodes.impact} of {len(replaced)}, "
            f"{len(gone)} of {len(before.instances)} terminated"
        )
    restarts = any("run document" in one.path for change in found.changes for one in change.differences)
    if restarts != (before.run_version != after.run_version):
        wrong.append(f"run document: expected {restarts}, version {before.run_version} -> {after.run_version}")
    return wrong


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(config)))
    for key, value in changes.items():
        *parents, last = key.split(".")
        section = document
        for name in parents:
            section = section.setdefault(name, {})
        section[last] = value
    return document


def run_base(base: str, cases: list[dict[str, Any]], folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each change with the differences from its review."""
    workplace = copied_project(folder)
    try:
        config: dict[str, Any] = yaml.safe_load((ROOT / "config" / f"{base}.yaml").read_text())
        account = Account(workplace, config["name"])
        config = prepare(base, config, workplace)
        account.free_reservations()
        for case in cases:
            decides = "storage.deletion" in {**case.get("from", {}), **case.get("changes", {})}
            start = config if decides else merged(config, {"storage.deletion": "destroy"})
            old, new = merged(start, case.get("from", {})), merged(start, account.with_ids(case.get("changes", {})))
            workplace.context = {} if decides else ALLOWED
            account.synthesise(old)
            # After a rejected change, destroy TrainingStack as the review suggests; if that does not help, all stacks.
            is_deployed = account.deploy() or (account.without_training() and account.deploy())
            if not is_deployed and not (account.without_anything() and account.deploy()):
                yield f"{case['name']}: base", ["cannot be deployed"]
                continue
            yield from _change_and_revert(case, account, old, new)
    finally:
        workplace.cloud.run("down")


def _change_and_revert(
    case: Mapping[str, Any], account: Account, old: dict[str, Any], new: dict[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    before_context, after_context = account.workplace.context, {**account.workplace.context, **case.get("context", {})}
    steps = ((case["name"], old, new, after_context), (f"{case['name']}, reverted", new, old, before_context))
    for label, before_config, after_config, context in steps:
        before = account.observe(int(before_config["capacity"].get("nodes", 1)))
        if not before.instances:
            yield label, ["no instance launched, so the impact on instances is unknown"]
            return
        account.workplace.context = context
        is_sorted = bool(case.get("reordered")) and after_config is new
        found = account.review(account.synthesise(after_config, is_sorted=is_sorted))
        is_deployed = account.deploy()
        if is_deployed == bool(found.blockers):
            blockers = "; ".join(one.reason for one in found.blockers) or "none"
            yield label, [f"blockers: {blockers}, but the deploy {'succeeded' if is_deployed else 'failed'}"]
        elif not is_deployed:
            yield label, []
        else:
            after = account.observe(int(after_config["capacity"].get("nodes", 1)))
            yield label, disagreements(found, before, after)
        if not is_deployed:
            return


def main() -> int:
    """Run the cases; return 1 if a review was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.stacks.changes.agreement", description=__doc__)
    parser.add_argument("cases", nargs="*", help="names of cases (default: all cases that the cloud can run)")
    parser.add_argument("--base", choices=BASES, help="only the cases of this example")
    options = parser.parse_args()
    named = [case for case in read_cases("cases").values() if not options.cases or case["name"] in options.cases]
    chosen = [case for case in named if not_run(case) is None]
    total = wrong = 0
    for base in BASES if options.base is None else (options.base,):
        cases = [case for case in chosen if case["base"] == base]
        if not cases:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for name, problems in run_base(base, cases, Path(folder)):
                total, wrong = total + 1, wrong + bool(problems)
                print(f"{base}: {name}: {'; '.join(problems) or 'as reviewed'}", flush=True)
    for case in named:
        if options.base in (None, case["base"]) and (reason := not_run(case)):
            print(f"{case['base']}: {case['name']}: not run: {reason}")
    print(f"{total - wrong} of {total} changes had the reviewed effects")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
