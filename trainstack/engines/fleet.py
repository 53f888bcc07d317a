"""The engine `fleet`: instances in an AWS account, managed by the stacks, the run controller and the supervisors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stacks.capacity.catalogue import catalogue
from trainstack import account
from trainstack.engines.engine import LogQuery, Submission, View
from trainstack.observe import node_events, status, why
from trainstack.observe.current import observing, status_of
from trainstack.operate import deploying, verbs
from trainstack.session import INVALID, Account, CommandError


class FleetStatus:
    """A fleet's status, to print."""

    def __init__(self, found: status.Status) -> None:
        self._found = found

    def to_json(self) -> Any:
        """Return JSON values."""
        return self._found.to_json()

    def lines(self) -> list[str]:
        """Return lines for a terminal."""
        return status.lines(self._found)


class FleetEngine:
    """One deployment in AWS."""

    def __init__(self, name: str, region: str | None, file: Path | None = None) -> None:
        self._name, self._region, self._file = name, region, file
        self._observed: tuple[Account, account.Deployment] | None = None

    def submit(self, submission: Submission) -> None:
        """Review and deploy the file."""
        if self._file is None:
            raise CommandError(INVALID, f"{self._name}: must be a deployment file, such as config/my-run.yaml")
        deploying.deploy(
            self._file,
            list(submission.stacks),
            submission.approved,
            follows=submission.follow,
            as_json=submission.as_json,
        )

    def observe(self) -> View:
        """Return the run's status."""
        if self._observed is None:
            opened = observing(self._region)
            self._observed = (opened, account.find(opened.client, self._name))
        return FleetStatus(status_of(*self._observed))

    def explain(self) -> View:
        """Return why the run is not training."""
        opened, now = observing(self._region).prepare("logs"), time.time()
        seen = account.observe(opened.client, account.find(opened.client, self._name), now)
        return why.explain(
            seen,
            status.status_of(seen, catalogue(), opened.region, now),
            lambda: why.first_failure(opened.client, seen, now),
        )

    def logs(self, query: LogQuery) -> Iterator[str]:
        """Yield lines of the trainers' output."""
        opened = Account(self._region)
        group = account.find(opened.client, self._name).log_group
        oldest = time.time() - query.since_seconds
        reader = node_events.EventReader(opened.client("logs"), group, oldest, query.node)
        for event in reader.follow() if query.follow else reader.poll():
            if event["event"] == "trainer_output" and query.rank in (None, event.get("rank")):
                yield from node_events.output_lines(event)

    def stop(self, *, waits: bool, as_json: bool) -> None:
        """Save a checkpoint and scale the fleet to zero."""
        verbs.stop(self._name, self._region, waits=waits, as_json=as_json)

    def resume(self, *, waits: bool, as_json: bool) -> None:
        """Start the fleet again."""
        verbs.resume(self._name, self._region, waits=waits, as_json=as_json)
