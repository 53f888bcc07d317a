"""The engine `kubernetes`: a run's pods through kubectl, and its records in S3."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from bootstrap.documents.object_keys import control_prefix
from bootstrap.errors import ControlStoreError
from bootstrap.supervise.membership.control import OUTCOME_NAME, STATUS_NAME
from bootstrap.supervise.membership.records import (
    MAX_RECORD_BYTES,
    RunOutcome,
    run_outcome_from_bytes,
    run_status_from_bytes,
)
from bootstrap.supervise.membership.records import RunStatus as Record
from stacks.capacity.saving import grace_seconds
from trainstack.engines.engine import LogQuery, Submission
from trainstack.kubernetes.kubectl import Call, Cluster, call, stream
from trainstack.kubernetes.manifests import DIGEST, manifest_text, manifests
from trainstack.kubernetes.observation import RunStatus, explanation_of, pod_status, status_of
from trainstack.kubernetes.plan import Plan
from trainstack.observe.why import Explanation
from trainstack.operate.waiting import Look, wait
from trainstack.session import FAILED, INVALID, REFUSED, Account, CommandError

START_SECONDS = 600.0
STOP_MARGIN_SECONDS = 60.0
FOREVER = float("inf")


class KubernetesEngine:
    """The pods of one deployment file."""

    def __init__(
        self,
        plan: Plan,
        file: Path,
        run: Call = call,
        lines: Callable[..., Iterator[str]] = stream,
        s3: Any = None,
    ) -> None:
        self._plan, self._file, self._lines = plan, file, lines
        self._cluster = Cluster(plan, run)
        self._client = s3

    @property
    def _s3(self) -> Any:
        if self._client is None:
            self._client = Account(self._plan.config.region).client("s3")
        return self._client

    def submit(self, submission: Submission) -> None:
        """Upload the code and apply the manifests. A job that must be replaced is deleted first, so that its pods
        save."""
        if submission.stacks or submission.approved > 10:
            raise CommandError(
                INVALID, f"{self._file}: engine kubernetes has no stacks and no review; remove the options"
            )
        documents = manifests(self._plan, self._plan.section.flavour, self._plan.section.queue)
        self._upload()
        job, outcome = self._cluster.job(), self._outcome()
        has_ended = job is not None and self._observe(job).phase == "ended"
        if outcome is not None and outcome.outcome == "finished":
            print(f"{self._file}: the run has finished; set another training.run for a new one", file=sys.stderr)
        else:
            if outcome is not None:
                self._s3.delete_object(Bucket=self._plan.node.control_bucket, Key=self._key(OUTCOME_NAME))
            expected = documents[-1]["metadata"]["annotations"][DIGEST]
            is_same = job is not None and job["metadata"].get("annotations", {}).get(DIGEST) == expected
            if job is not None and (has_ended or not is_same):
                print(f"{self._file}: replacing the job; its pods save first", file=sys.stderr)
                self._cluster.delete_job(grace_seconds(self._plan.config))
                is_same = False
            # Do not apply an unchanged job: that would start a stopped one.
            self._cluster.apply(manifest_text(documents[:-1] if is_same else documents))
        if submission.follow:
            wait(self._look, FOREVER)
        found = self.observe()
        print(json.dumps(found.to_json()) if submission.as_json else "\n".join(found.lines()))
        if found.cause == "failed":
            raise CommandError(FAILED, f"{self._plan.run.run}: failed; see `trainstack why {self._file}`")

    def observe(self) -> RunStatus:
        """Return the run's status."""
        return self._observe(self._cluster.job())

    def explain(self) -> Explanation:
        """Return why the run is not training."""
        return explanation_of(self.observe())

    def logs(self, query: LogQuery) -> Iterator[str]:
        """Yield lines of the pods' logs, with the pod's name. `node` is a pod's name."""
        pods = [pod_status(pod) for pod in self._cluster.pods()]
        if query.node and query.node not in [pod.name for pod in pods]:
            raise CommandError(INVALID, f"--node: {query.node}: no such pod; see `trainstack status {self._file}`")
        chosen = query.node
        if query.rank is not None:
            record = self._status()
            members = record.members if record is not None else ()
            named = [pod.name for pod in pods if pod.instance_id in members[query.rank : query.rank + 1]]
            if not named:
                raise CommandError(INVALID, f"--rank: {query.rank}: no pod has this rank now; use --node")
            chosen = named[0]
        target = [chosen] if chosen else [f"--selector={self._cluster.selector}", "--prefix", "--tail=-1"]
        follow = ["--follow", f"--max-log-requests={max(5, len(pods))}"] if query.follow else []
        yield from self._lines(
            "logs", *target, f"--since={max(1, round(query.since_seconds))}s", *follow, *self._cluster.place
        )

    def stop(self, *, waits: bool, as_json: bool) -> None:
        """Suspend the job: the kubelet sends SIGTERM, and the pods save and exit."""
        self._cluster.suspend(self._required_running(), suspended=True)

        def look() -> Look:
            left = [pod for pod in map(pod_status, self._cluster.pods()) if pod.phase in ("Running", "Terminating")]
            return Look(not left, f"stopping: {len(left)} pods left")

        limit = grace_seconds(self._plan.config) + STOP_MARGIN_SECONDS
        if waits and not wait(look, limit):
            raise CommandError(FAILED, f"{self._file}: pods remain after {limit:.0f} s; see `kubectl get pods`")
        self._done("stopped" if waits else "stop requested", as_json=as_json)

    def resume(self, *, waits: bool, as_json: bool) -> None:
        """Resume a suspended job from its newest checkpoint."""
        self._cluster.suspend(self._required_running(), suspended=False)

        def look() -> Look:
            found = self.observe()
            return Look(found.phase in ("running", "ended"), found.line())

        if waits and not wait(look, START_SECONDS):
            raise CommandError(FAILED, f"{self._file}: not training; see `trainstack why {self._file}`")
        self._done("resumed", as_json=as_json)

    def _required_running(self) -> dict[str, Any]:
        job = self._cluster.required_job()
        if self._observe(job).phase == "ended":
            raise CommandError(REFUSED, f"{self._file}: the job has ended; run `trainstack up {self._file}`")
        return job

    def _observe(self, job: dict[str, Any] | None) -> RunStatus:
        plan = self._plan
        queued = job is not None and plan.section.queue is not None and bool(job["spec"].get("suspend"))
        return status_of(
            plan.config.name,
            plan.run.run,
            job,
            self._cluster.pods(),
            self._status(),
            self._outcome(),
            time.time(),
            is_deactivated=queued and job is not None and self._cluster.is_deactivated(job),
        )

    def _look(self) -> Look:
        found = self.observe()
        return Look(found.phase in ("ended", "stopped", "idle"), found.line())

    def _upload(self) -> None:
        """Upload the bundles that the bucket does not contain. Their names are their digests."""
        for key, file in self._plan.files.items():
            try:
                self._s3.head_object(Bucket=self._plan.section.bucket, Key=key)
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("404", "NoSuchKey"):
                    raise
                self._s3.upload_file(str(file.path), self._plan.section.bucket, key)

    def _key(self, name: str) -> str:
        return control_prefix(self._plan.config.name, self._plan.run.run) + name

    def _read(self, name: str) -> bytes | None:
        try:
            answer = self._s3.get_object(Bucket=self._plan.node.control_bucket, Key=self._key(name))
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise
        return bytes(answer["Body"].read(MAX_RECORD_BYTES))

    def _status(self) -> Record | None:
        content = self._read(STATUS_NAME)
        with contextlib.suppress(ControlStoreError):  # the pods report an invalid record, and rewrite the status
            return None if content is None else run_status_from_bytes(content, self._key(STATUS_NAME))
        return None

    def _outcome(self) -> RunOutcome | None:
        """Return the outcome of the file's run document, or None. An edited run has no outcome yet."""
        content = self._read(OUTCOME_NAME)
        if content is None:
            return None
        try:
            found = run_outcome_from_bytes(content, self._key(OUTCOME_NAME))
        except ControlStoreError as error:
            raise CommandError(FAILED, f"{error}; delete the object") from error
        return found if found.run_digest == self._plan.run.digest() else None

    def _done(self, result: str, *, as_json: bool) -> None:
        if as_json:
            print(json.dumps({"run": self._plan.run.run, "result": result}))
        else:
            print(f"{self._plan.run.run}: {result}")
