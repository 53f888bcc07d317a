"""A pytest plugin that runs LocalStack's snapshot tests against the embedded cloud, in LocalStack's own environment.

It writes a line of JSON for each test to the file TRUTH_RESULTS: the outcome, and the first differences.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# LocalStack's build generates the version file. The tests do not need it.
sys.modules.setdefault("localstack.version", types.ModuleType("localstack.version")).__version__ = "0"

SECONDS = 90
NOT_OFFERED = (
    *("is not emulated", "are not emulated", "not emulated:", "NotImplemented"),
    "the embedded cloud supports only python3.x runtimes",
)
# Fields that AWS added after most recordings, or that contain settings that the fixtures requested later.
LATER = ("LastOperations", "DeploymentConfig", "Capabilities", "OperationId", "ResourceIdentifiers")
# Lists whose order AWS does not define, and values that the services generate.
UNORDERED = (
    *(
        "Action",
        "Capabilities",
        "Changes",
        "Details",
        "LogicalResourceIds",
        "Parameters",
        "ResourceIdentifierSummaries",
    ),
    *("ResourceTypes", "Scope", "StackResourceSummaries", "Tags"),
)
GENERATED = {
    r"^https://sqs\.<region>\.amazonaws\.com/|^http://127\.0\.0\.1:\d+/": "QUEUES/",
    r"^[\w<>:-]+?-(\w+)-\w{12}$": r"STACK-\1-ID",
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}": "UUID",
    r"-[0-9a-f]{8}(?![0-9a-f])": "-ID",
    r"<(uuid|resource|stack-id):\d+>": r"<\1>",
}
DELETED = r"^/per-resource-events/\w+: AWS \[(.*)\]; \[\1, 'DELETE_IN_PROGRESS', 'DELETE_COMPLETE'\]$"
found: dict[str, Any] = {}


def pytest_configure() -> None:
    from botocore.client import BaseClient
    from localstack_snapshot.snapshots.prototype import SnapshotSession

    call, verify = BaseClient._make_api_call, SnapshotSession._assert_all

    def recording(self: Any, operation: str, parameters: Any) -> Any:
        try:
            answer = call(self, operation, parameters)
        except Exception as error:
            _note(str(error))
            raise
        if operation in ("DescribeStackEvents", "DescribeStacks"):
            _note(json.dumps(answer, default=str))
        return answer

    def strict(self: Any, _verify: bool = True, _paths: Any = None) -> Any:
        recorded = copy.deepcopy(self.recorded_state)
        try:
            return verify(self, True, [])
        except AssertionError:
            answered = {key: self.observed_state[key] for key in self.called_keys}
            expected = {key: recorded[key] for key in answered}
            different = list(differences(cosmetic(expected), cosmetic(answered)))
            if "EventId" in json.dumps(expected.get("per-resource-events")):
                # Older recordings end before the stack's deletion.
                different = [one for one in different if not re.search(DELETED, one)]
            found["outcome"] = "differs" if different else "cosmetic"
            if different:
                found["differences"] = different
                raise
            return []

    BaseClient._make_api_call, SnapshotSession._assert_all = recording, strict


def _note(text: str) -> None:
    for mark in NOT_OFFERED:
        if mark in text:
            at = text.index(mark)
            found.setdefault("reason", text[max(0, at - 120) : at + 60])


def differences(aws: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Yield the differences between AWS's response and the embedded cloud's."""
    if isinstance(aws, dict) and isinstance(ours, dict):
        for key in sorted(aws.keys() | ours.keys(), key=str):
            if key not in ours:
                yield f"{path}/{key}: AWS {str(aws[key])[:900]}; absent"
            elif key not in aws:
                yield f"{path}/{key}: AWS absent; {str(ours[key])[:900]}"
            else:
                yield from differences(aws[key], ours[key], f"{path}/{key}")
    elif isinstance(aws, list) and isinstance(ours, list) and len(aws) == len(ours):
        for number, pair in enumerate(zip(aws, ours, strict=True)):
            yield from differences(*pair, f"{path}/{number}")
    elif aws != ours:
        yield f"{path}: AWS {str(aws)[:900]}; {str(ours)[:900]}"


def cosmetic(value: Any) -> Any:
    """Return a response without values that vary between AWS's responses or that AWS has added since the recording."""
    if isinstance(value, dict):
        return {
            key: _statuses(item) if key == "per-resource-events" else _unordered(key, cosmetic(item))
            for key, item in value.items()
            if key not in LATER and not (key == "Replacement" and value["Action"] == "Add")  # until May 2025
        }
    if isinstance(value, str):
        for pattern, same in GENERATED.items():
            value = re.sub(pattern, same, value)
    return [cosmetic(item) for item in value] if isinstance(value, list) else value


def _unordered(key: str, items: Any) -> Any:
    if key not in UNORDERED or not isinstance(items, list):
        return items
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True, default=str))


def _statuses(events: dict[str, list[dict[str, str]]]) -> dict[str, list[str]]:
    """Return each resource's statuses. Older recordings have different fields and the reverse order."""
    shown = {}
    for name, entries in events.items():
        ordered = entries[::-1] if "EventId" in entries[0] else entries
        lines = [each["ResourceStatus"] for each in ordered if "CLEANUP" not in each["ResourceStatus"]]
        shown["Stack" if name.startswith("<stack-name") else name] = [
            line for line, before in zip(lines, ["", *lines], strict=False) if line != before
        ]
    return shown


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that have recorded responses, and remove LocalStack's skip and xfail marks."""
    kept, rest, recorded = [], [], {}
    for item in items:
        path = item.path.with_name(item.path.stem + ".snapshot.json")
        if path not in recorded:
            recorded[path] = json.loads(path.read_text()) if path.exists() else {}
        (kept if item.nodeid in recorded[path] else rest).append(item)
    config.hook.pytest_deselected(items=rest)
    items[:] = kept
    for node in {node for item in items for node in item.listchain()}:
        node.own_markers[:] = [mark for mark in node.own_markers if mark.name not in ("skip", "skipif", "xfail")]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    found.clear()

    def late(*_: object) -> None:
        raise TimeoutError(f"no result after {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    if "outcome" not in found:
        found["outcome"] = "equal" if found.get("passed") else "out of scope" if "reason" in found else "differs"
    with Path(os.environ["TRUTH_RESULTS"]).open("a", encoding="utf-8") as out:
        out.write(json.dumps({"test": item.nodeid, **found}) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        found["passed"] = True
    elif report.skipped:
        found.update(outcome="out of scope", reason=str(report.longrepr)[-200:])
    elif report.failed and report.when != "teardown":
        found.pop("outcome", None)
        found["failure"] = str(report.longrepr)[-3000:]
