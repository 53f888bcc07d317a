"""Which dataset of the bucket a run is trained on: the one it names, or what its own function made of raw objects.

Nodes agree without talking: each computes the same digest, looks for the commit, and makes or takes over a claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import RunDocument
from bootstrap.errors import LastingError, StepError
from bootstrap.layout import Layout
from bootstrap.plan import Context
from bootstrap.prepared.claims import Claim, ClaimStore
from bootstrap.prepared.code import code_digest
from bootstrap.prepared.inputs import SourceObject, prepared_digest, source_objects
from bootstrap.prepared.making import Making

logger = logging.getLogger(__name__)

SILENCE_FACTOR = 4
"""Of heartbeat_timeout_seconds: to take over hours of work too early costs more than to wait."""
MOST_CLAIMS = 20
"""So many nodes may leave, or be lost, at the same work."""


def stored_dataset(layout: Layout, run: RunDocument) -> str:
    """Return the name under datasets/ in the bucket of the dataset that is staged for a run."""
    if run.prepare is None:
        return run.dataset
    return layout.prepared_dataset.read_text(encoding="utf-8").strip()


def find_prepared(context: Context, run: RunDocument) -> str | None:
    """Return the name under datasets/ of a run's prepared data where they are there already; makes nothing.

    Raises:
        StepError: The source or the records cannot be read.
    """
    try:
        store, _ = _inputs(context, run)
        found = store.committed()
    except AWS_ERRORS as error:
        raise _unreachable(context, error) from error
    if found is not None and context.system.read(context.layout.prepared_dataset) != f"{found}\n":
        context.events.emit("data_preparation", state="found", place=store.url, message="the work is skipped")
        _keep(context, found)
    return found


def prepare_data(context: Context, run: RunDocument, unwanted: Callable[[], bool]) -> str:
    """Return the name under datasets/ of a run's prepared data, when they are made: here, or by another node.

    Args:
        context: What the step works with.
        run: A run with `prepare`; its code is unpacked.
        unwanted: Says that nobody waits for the data any more.

    Raises:
        LastingError: The data cannot be made from these inputs.
        StepError: Something around it failed, or the data are unwanted.
    """
    try:
        found = find_prepared(context, run)
        while found is None:
            store, objects = _inputs(context, run)  # again: after a failure the source may be another
            found = _Gang(context, run, store, unwanted).prepared(objects)
        _keep(context, found)
    except AWS_ERRORS as error:
        raise _unreachable(context, error) from error
    return found


class _Gang:
    """This node among those that need the same data."""

    def __init__(self, context: Context, run: RunDocument, store: ClaimStore, unwanted: Callable[[], bool]) -> None:
        assert context.identity is not None
        self._context = context
        self._run = run
        self._run_digest = run.digest()
        self._store = store
        self._unwanted = unwanted
        self._instance_id = context.identity.instance_id
        self._seen: Claim | None = None
        self._seen_at = 0.0

    def prepared(self, objects: Sequence[SourceObject]) -> str | None:
        """Make the data, or wait for them; None: what this node made came to nothing, look again.

        Raises:
            LastingError: The function failed, here or on another node, or too many nodes were lost at it.
            StepError: See `prepare_data`.
        """
        while True:
            found = self._store.committed()
            if found is not None:
                return found
            claim = self._store.newest()
            if self._is_free(claim):
                self._check_count(claim)
                mine = Claim((claim.number if claim else 0) + 1, self._instance_id, self._run_digest)
                if self._store.make(mine):
                    Making(self._context, self._run, self._store, mine, self._unwanted).make(objects)
                    return self._store.committed()
            if self._unwanted():
                raise StepError("the data are not waited for to the end: the run changed", remedy="none is needed")
            self._context.system.sleep(self._context.node.supervise.poll_seconds)

    def _is_free(self, claim: Claim | None) -> bool:
        """Return whether nobody is at work; says whom this node waits for."""
        if claim is None or claim.state == "released":
            return True
        if claim.state == "failed":
            return self._may_try_again(claim)
        if claim.instance_id == self._instance_id:  # of an earlier process
            return True
        now = self._context.system.monotonic_seconds()
        if self._seen != claim:
            if self._seen is None or self._seen.number != claim.number:
                self._emit("waiting", for_instance=claim.instance_id)
            self._seen, self._seen_at = claim, now
        silent_seconds = now - self._seen_at
        if silent_seconds < SILENCE_FACTOR * self._context.node.supervise.heartbeat_timeout_seconds:
            return False
        self._emit("taken_over", from_instance=claim.instance_id, silent_seconds=round(silent_seconds, 1))
        return True

    def _may_try_again(self, claim: Claim) -> bool:
        """Another run document may: a person has changed something, if only the run's name."""
        if claim.run_digest == self._run_digest:
            raise LastingError(
                f"{self._store.url}: {claim.instance_id} could not make the data: {claim.message}",
                remedy="do as it says; no node tries it again in this run",
            )
        return True

    def _check_count(self, newest: Claim | None) -> None:
        if newest is not None and newest.number >= MOST_CLAIMS:
            raise LastingError(
                f"{self._store.url}: {newest.number} nodes began to make the data, and none came to an end",
                remedy="see their events for what ended them; take on-demand capacity for a long preparation; then "
                f"aws s3 rm --recursive {self._store.url}/claims/",
            )

    def _emit(self, state: str, **fields: object) -> None:
        self._context.events.emit("data_preparation", state=state, place=self._store.url, **fields)


def _inputs(context: Context, run: RunDocument) -> tuple[ClaimStore, tuple[SourceObject, ...]]:
    assert run.prepare is not None
    s3, bucket = context.aws.client("s3"), context.node.dataset_bucket
    objects = source_objects(s3, bucket, run.prepare.source)
    code = code_digest(context.layout.code(run.code.sha256), run.prepare.function, run.code.sha256)
    return ClaimStore(s3, bucket, prepared_digest(code, run.prepare, objects)), objects


def _keep(context: Context, stored: str) -> None:
    context.system.write_atomic(context.layout.prepared_dataset, f"{stored}\n")


def _unreachable(context: Context, error: Exception) -> StepError:
    return StepError(
        f"s3://{context.node.dataset_bucket}: the source of prepared data, or a record of them, cannot be read or "
        f"written ({error})",
        remedy="check the S3 endpoint, and that the node's role may read training.prepare.source and write below "
        "datasets/prepared/",
    )
