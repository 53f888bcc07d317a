"""The engine of a managed cluster: the stacks create the cluster, and another engine runs jobs or pods on it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from trainstack.clusters.state import Cluster, ClusterState, ClusterStatus, explain_cluster
from trainstack.engines.engine import Engine, LogQuery, Submission, View
from trainstack.observe.why import Explanation
from trainstack.session import FAILED, REFUSED, CommandError

Deploy = Callable[[Path, tuple[str, ...], int], None]


class ManagedEngine:
    """A deployment with a managed cluster.

    Args:
        cluster: The cluster.
        file: The deployment file.
        deploy: Deploys the stacks of a file, or the given ones, after a review.
        jobs: The engine for the jobs or pods; None: this machine cannot reach them.
        deploys_with_jobs: Whether a machine that can reach the jobs also deploys the stacks.
    """

    def __init__(
        self, cluster: Cluster, file: Path, deploy: Deploy, jobs: Engine | None, *, deploys_with_jobs: bool = False
    ) -> None:
        self._cluster, self._file, self._deploy, self._jobs = cluster, file, deploy, jobs
        self._deploys_with_jobs = deploys_with_jobs

    def submit(self, submission: Submission) -> None:
        """Deploy the stacks. Where the jobs can be reached, start the run."""
        if self._jobs is None or self._deploys_with_jobs:
            self._deploy(self._file, submission.stacks, submission.approved)
            if submission.stacks:
                return
        elif submission.stacks:
            raise CommandError(
                REFUSED, f"{self._file}: deploy stacks from a machine without Slurm's commands, not from a login node"
            )
        state = self._cluster.read()
        if self._jobs is None:
            found = ClusterStatus(state, None)
            print(json.dumps(found.to_json()) if submission.as_json else "\n".join(found.lines()))
            if state.problems:
                raise CommandError(FAILED, f"{state.summary()}; see `trainstack why {self._file}`")
            return
        self._require_ready(state)
        if self._deploys_with_jobs and state.access and not submission.as_json:
            print(state.access)
        self._jobs.submit(dataclasses.replace(submission, stacks=(), approved=0))

    def observe(self) -> View:
        """Return the status of the cluster and the run."""
        return ClusterStatus(self._cluster.read(), None if self._jobs is None else self._jobs.observe())

    def explain(self) -> View:
        """Return why the cluster does not accept jobs, or else why the run is not training."""
        state = self._cluster.read()
        found = explain_cluster(state)
        if found is not None:
            return found
        if self._jobs is not None:
            return self._jobs.explain()
        return Explanation("", "", f"{state.summary()}. It accepts jobs.", (), state.access)

    def logs(self, query: LogQuery) -> Iterator[str]:
        """Yield lines of the trainers' output."""
        yield from self._reachable_jobs("logs").logs(query)

    def stop(self, *, waits: bool, as_json: bool) -> None:
        """Stop the run. The cluster remains, and terminates idle nodes if it scales."""
        self._reachable_jobs("stop").stop(waits=waits, as_json=as_json)

    def resume(self, *, waits: bool, as_json: bool) -> None:
        """Start a stopped run again."""
        self._reachable_jobs("resume").resume(waits=waits, as_json=as_json)

    def _reachable_jobs(self, command: str) -> Engine:
        if self._jobs is None:
            state = self._cluster.read()
            where = state.access or f"the cluster does not exist; run `trainstack up {self._file}`"
            raise CommandError(REFUSED, f"{self._file}: `{command}` needs Slurm's commands: {where}")
        return self._jobs

    def _require_ready(self, state: ClusterState) -> None:
        if not state.is_ready:
            raise CommandError(FAILED, f"{state.summary()}, not ready; see `trainstack why {self._file}`")
