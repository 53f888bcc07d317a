"""`python -m tests.stacks.changes.agreement`: deploys the cases on the embedded cloud, and prints how each verdict did.

Each case is deployed as an edit of its base, and then taken back, which is a change too. Compared are what becomes of
each resource (its id kept, another one, gone), of the machines, of the run document, and whether the deploy is
refused. The machines are real to the cloud and idle: their user data sleeps. Takes about a minute a case.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stacks.changes.assembly import Assembly, read_assembly
from stacks.changes.deployed import deployed
from stacks.changes.review import Review, review
from stacks.config import read
from tests.deploy.accounts import prepare
from tests.deploy.conftest import Workplace
from tests.localcloud.core.command_line import ROOT, Cli
from tests.stacks.changes.expectations import read_cases

SHIM = "#!/bin/bash\nexec sleep 86400\nexit # node document\n"
BASES = ("demo", "ec2-fleet", "spot-fleet", "minimal", "volumes", "lustre", "existing-vpc", "reserved")
DEADLINE_SECONDS = 180.0
MOVES_IN_PLACE = {"AWS::Budgets::Budget"}
"""Types whose id holds what an update changes."""


@dataclass(frozen=True)
class Seen:
    """What there is in the account."""

    ids: Mapping[str, str]
    machines: Mapping[str, str]
    run_version: int


class Account:
    """One deployment on a cloud of its own."""

    def __init__(self, workplace: Workplace, name: str) -> None:
        self.workplace = workplace
        self._name = name

    def client(self, service: str) -> Any:
        return self.workplace.cloud.client(service)

    def synthesise(self, config: Mapping[str, Any]) -> Assembly:
        path = self.workplace.project / "config" / "deployed.yaml"
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        done = self.workplace.cdk("synth", "--quiet")
        if done.exit_code:
            raise RuntimeError(done.output)
        return read_assembly(self.workplace.project / "build" / "cdk.out")

    def review(self, after: Assembly) -> Review:
        """Review a change against what CloudFormation holds."""
        config = read(self.workplace.project / "config" / "deployed.yaml")
        before, _ = deployed(config, after, self.client)
        return review(before, after)

    def deploy(self) -> bool:
        """Deploy what was synthesised last; tell whether it came to a good end."""
        arguments = ("--all", "--require-approval", "never", "--concurrency", "2", "--app", "build/cdk.out")
        with self._hooks_completed():
            return self.workplace.cdk("deploy", *arguments).exit_code == 0

    def without_training(self) -> bool:
        """Destroy the stack that imports from the others; tell whether it went."""
        with self._hooks_completed():
            return self.workplace.cdk("destroy", "TrainingStack", "--force").exit_code == 0

    @contextmanager
    def _hooks_completed(self) -> Iterator[None]:
        """Answer the terminating hook as a node does that has saved."""
        ended, client = threading.Event(), self.client("autoscaling")

        def answer() -> None:
            while not ended.wait(0.5):
                for one in client.describe_auto_scaling_instances()["AutoScalingInstances"]:
                    if one["LifecycleState"] == "Terminating:Wait":
                        client.complete_lifecycle_action(
                            LifecycleHookName="trainstack-terminating",
                            AutoScalingGroupName=one["AutoScalingGroupName"],
                            InstanceId=one["InstanceId"],
                            LifecycleActionResult="CONTINUE",
                        )

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def seen(self, nodes: int) -> Seen:
        """Return what there is, once as many machines run as the run wants, or when they do not come.

        Machines that never train make the run controller wait ever longer before it asks again.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._hooks_completed():
            while len(machines := self._machines()) != nodes or self._leaving():
                if time.monotonic() > deadline:
                    break
                time.sleep(1.0)
        ids = {
            f"{stack.removeprefix(self._name + '-')}/{logical_id}": physical_id
            for stack in self.workplace.stacks()
            for logical_id, (_, physical_id) in self.workplace.physical_ids(stack).items()
        }
        parameter = self.client("ssm").get_parameter(Name=f"/trainstack/{self._name}/run")["Parameter"]
        return Seen(ids, machines, int(parameter["Version"]))

    def _machines(self) -> dict[str, str]:
        return {one["InstanceId"]: one["InstanceType"] for one in self._instances("running", "pending")}

    def _leaving(self) -> bool:
        return bool(self._instances("shutting-down", "stopping"))

    def _instances(self, *states: str) -> list[dict[str, Any]]:
        filters = [{"Name": "instance-state-name", "Values": list(states)}]
        pages = self.client("ec2").describe_instances(Filters=filters)["Reservations"]
        return [one for reservation in pages for one in reservation["Instances"]]


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
    workplace = _workplace(folder)
    try:
        config: dict[str, Any] = yaml.safe_load((ROOT / "config" / f"{base}.yaml").read_text())
        config.setdefault("storage", {})["deletion"] = "destroy"
        account = Account(workplace, config["name"])
        config = prepare(base, config, workplace)
        for case in cases:
            old, new = merged(config, case.get("from", {})), merged(config, case.get("changes", {}))
            account.synthesise(old)
            # After a change that was refused, the way round that a review tells.
            if not account.deploy() and not (account.without_training() and account.deploy()):
                yield f"{case['name']}: its base", ["cannot be deployed"]
                continue
            yield from _there_and_back(case["name"], account, old, new)
    finally:
        workplace.cloud.run("down")


def _there_and_back(
    name: str, account: Account, old: dict[str, Any], new: dict[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    for label, before_config, after_config in ((name, old, new), (f"{name}, taken back", new, old)):
        before = account.seen(int(before_config["capacity"].get("nodes", 1)))
        if not before.machines:
            yield label, ["no machine came: what becomes of machines was not seen"]
            return
        found = account.review(account.synthesise(after_config))
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


def _workplace(folder: Path) -> Workplace:
    project = folder / "project"
    for name in ("bootstrap", "stacks", "training", "config"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("app.py", "cdk.json"):
        shutil.copy(ROOT / name, project)
    (project / "stacks" / "shim.sh").write_text(SHIM)
    shutil.copy(project / "config" / "demo.yaml", project / "config" / "deployed.yaml")
    cloud = Cli(folder / "cloud")
    cloud.good("up", "--port", "0")
    workplace = Workplace(project, cloud)
    if (toolkit := workplace.cdk("bootstrap")).exit_code:
        cloud.run("down")
        raise RuntimeError(toolkit.output)
    return workplace


def main() -> int:
    """Run the cases; return 1 when a verdict was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.stacks.changes.agreement", description=__doc__)
    parser.add_argument("cases", nargs="*", help="names of cases (default: all that the cloud can run)")
    parser.add_argument("--base", choices=BASES, help="only those of this example")
    options = parser.parse_args()
    listed = [
        case
        for case in read_cases("cases").values()
        # Another context is another command line, and another name or region another deployment.
        if not {"error", "left_behind"} & set(case["expect"]) and "context" not in case and not case.get("reordered")
    ]
    chosen = [case for case in listed if not options.cases or case["name"] in options.cases]
    judged = wrong = 0
    for base in BASES if options.base is None else (options.base,):
        cases = [case for case in chosen if case["base"] == base]
        if not cases:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for name, problems in run_base(base, cases, Path(folder)):
                judged, wrong = judged + 1, wrong + bool(problems)
                print(f"{base}: {name}: {'; '.join(problems) or 'as said'}", flush=True)
    print(f"{judged - wrong} of {judged} changes went as said")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
