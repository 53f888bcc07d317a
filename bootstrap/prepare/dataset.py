"""Selects a run's dataset: the dataset that the run names, or the data that its function prepares.

Nodes coordinate only through the bucket. Each node computes the same digest, looks for a commit, and creates or takes
over a claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from bootstrap.aws import AWS_ERRORS
from bootstrap.context import Context
from bootstrap.documents import RunDocument
from bootstrap.errors import PermanentError, StepError
from bootstrap.events.schema import DataPreparation
from bootstrap.layout import Layout
from bootstrap.prepare.claims import MAX_CLAIMS, Claim, ClaimStore
from bootstrap.prepare.code import code_digest
from bootstrap.prepare.inputs import SourceObject, prepared_digest, source_objects
from bootstrap.prepare.preparation import Preparation

logger = logging.getLogger(__name__)


def stored_dataset(layout: Layout, run: RunDocument) -> str:
    """Return the name, under datasets/ in the bucket, of the dataset to stage for a run."""
    if run.prepare is None:
        return run.dataset
    return layout.prepared_dataset.read_text(encoding="utf-8").strip()


def find_prepared(context: Context, run: RunDocument) -> str | None:
    """Return the name, under datasets/, of a run's prepared data, or None if the data is not prepared yet.

    Raises:
        StepError: The source or the records cannot be read.
    """
    try:
        store, _ = _inputs(context, run)
        found = store.committed()
    except AWS_ERRORS as error:
        raise _aws_failure(context, error) from error
    if found is not None and context.system.read(context.layout.prepared_dataset) != f"{found}\n":
        context.events.emit(DataPreparation(state="found", url=store.url, message="using the existing data"))
        _record(context, found)
    return found


def prepare_data(context: Context, run: RunDocument, cancelled: Callable[[], bool]) -> str:
    """Prepare a run's data, or wait for another node to do so. Return its name under datasets/.

    Args:
        context: The context of the node.
        run: A run with `prepare`, whose code is unpacked.
        cancelled: Function that returns True when the data is no longer needed.

    Raises:
        PermanentError: The function failed, or the inputs are invalid.
        StepError: The preparation failed for another reason, or was cancelled.
    """
    try:
        found = find_prepared(context, run)
        while found is None:
            store, objects = _inputs(context, run)  # list again because the source may have changed after a failure
            found = _Coordination(context, run, store, cancelled).prepare(objects)
        _record(context, found)
    except AWS_ERRORS as error:
        raise _aws_failure(context, error) from error
    return found


class _Coordination:
    """Coordinates with the other nodes that need the same data."""

    def __init__(self, context: Context, run: RunDocument, store: ClaimStore, cancelled: Callable[[], bool]) -> None:
        assert context.identity is not None
        self._context = context
        self._run = run
        self._run_digest = run.digest()
        self._store = store
        self._cancelled = cancelled
        self._instance_id = context.identity.instance_id
        self._seen: Claim | None = None
        self._seen_at = 0.0

    def prepare(self, objects: Sequence[SourceObject]) -> str | None:
        """Prepare the data or wait for it. Return None if this node's work was not committed.

        Raises:
            PermanentError: The function failed here or on another node, or too many nodes have tried.
            StepError: See `prepare_data`.
        """
        while True:
            found = self._store.committed()
            if found is not None:
                return found
            claim = self._store.newest()
            if self._is_free(claim):
                self._check_count(claim)
                number = (claim.number if claim else 0) + 1
                mine = Claim(number, self._instance_id, self._run_digest, self._context.node.role_id)
                if self._store.create(mine):
                    Preparation(self._context, self._run, self._store, mine, self._cancelled).run(objects)
                    return self._store.committed()
            if self._cancelled():
                raise StepError("stopped waiting for prepared data: the run changed", remedy="no action is needed")
            self._context.system.sleep(self._context.node.supervise.poll_seconds)

    def _is_free(self, claim: Claim | None) -> bool:
        """Return True if this node may create the next claim. Otherwise, report the claim's node."""
        if claim is None or claim.state == "released":
            return True
        if claim.state == "failed":
            self._check_failure(claim)
            return True
        if claim.instance_id == self._instance_id:  # a claim by an earlier process on this node
            return True
        now = self._context.system.monotonic_seconds()
        if self._seen != claim:
            if self._seen is None or self._seen.number != claim.number:
                self._emit("waiting", claim)
            self._seen, self._seen_at = claim, now
        silent_seconds = now - self._seen_at
        if silent_seconds < self._context.node.supervise.claim_timeout_seconds:
            return False
        self._emit("taken_over", claim, silent_seconds=round(silent_seconds, 1))
        return True

    def _check_failure(self, claim: Claim) -> None:
        """Raise PermanentError if the claim failed in this run. A node with a changed run document may retry."""
        if claim.run_digest == self._run_digest:
            raise PermanentError(
                f"{self._store.url}: data preparation failed on {claim.instance_id}: {claim.message}",
                remedy="see the message; no node will retry in this run",
            )

    def _check_count(self, newest: Claim | None) -> None:
        if newest is not None and newest.number >= MAX_CLAIMS:
            raise PermanentError(
                f"{self._store.url}: {newest.number} nodes started preparing the data, and none finished",
                remedy="see their events for the cause; use on-demand capacity for a long preparation; then "
                f"aws s3 rm --recursive {self._store.url}/claims/",
            )

    def _emit(
        self, state: Literal["waiting", "taken_over"], claim: Claim, *, silent_seconds: float | None = None
    ) -> None:
        owner = claim.instance_id
        self._context.events.emit(
            DataPreparation(state, self._store.url, owner_instance_id=owner, silent_seconds=silent_seconds)
        )


def _inputs(context: Context, run: RunDocument) -> tuple[ClaimStore, tuple[SourceObject, ...]]:
    assert run.prepare is not None
    s3, bucket = context.aws.client("s3", patience="high"), context.node.dataset_bucket
    objects = source_objects(s3, bucket, run.prepare.source)
    code = code_digest(context.layout.code(run.code.sha256), run.prepare.function, run.code.sha256)
    return ClaimStore(s3, bucket, prepared_digest(code, run.prepare, objects)), objects


def _record(context: Context, stored: str) -> None:
    context.system.write_atomic(context.layout.prepared_dataset, f"{stored}\n")


def _aws_failure(context: Context, error: Exception) -> StepError:
    return StepError(
        f"s3://{context.node.dataset_bucket}: cannot read the source or the records of prepared data ({error})",
        remedy="check the S3 endpoint, and that the node's role may read training.prepare.source and write under "
        "datasets/prepared/",
    )
