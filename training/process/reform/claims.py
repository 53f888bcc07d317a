"""Decides from which ranks a gang that is formed again takes its state: a pure function of all ranks' claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from training.errors import NotReformedError


class Claim(NamedTuple):
    """One rank's state.

    Attributes:
        step: newest completed step; None for a rank that joins.
        digest: the ledger's digest after that step.
        previous: the ledger's digest before that step.
        is_whole: False if the rank was inside an optimizer step, or has received only part of a state.
        fits: False if the new batch shapes would be compiled during the pause.
    """

    step: int | None
    digest: str
    previous: str
    is_whole: bool
    fits: bool = True


class Verdict(NamedTuple):
    """The state to continue from.

    Attributes:
        step: optimizer steps completed.
        sources: ranks that have this state, in rank order.
        receivers: ranks that need it, in rank order.
    """

    step: int
    sources: list[int]
    receivers: list[int]


def judge(claims: Sequence[Claim]) -> Verdict:
    """Return the newest completed step on any rank, the ranks that have it, and the others.

    A rank can be one step behind, if a collective completed on other ranks only. It has then computed the same steps
    before.

    Raises:
        NotReformedError: No rank has a complete state, or two ranks have computed different steps.
    """
    if not all(claim.fits for claim in claims):
        raise NotReformedError("compile: a batch of the new gang has a shape that is not compiled")
    held = {rank: claim for rank, claim in enumerate(claims) if claim.is_whole and claim.step is not None}
    if not held:
        raise NotReformedError("no rank holds a complete state")
    newest = max(claim.step for claim in held.values() if claim.step is not None)
    sources = [rank for rank, claim in held.items() if claim.step == newest]
    first = held[sources[0]]
    for rank, claim in held.items():
        if claim.step == newest:
            is_same = claim.digest == first.digest
        elif claim.step == newest - 1:
            is_same = claim.digest == first.previous
        else:
            raise NotReformedError(f"rank {rank} is at step {claim.step}, rank {sources[0]} at step {newest}")
        if not is_same:
            raise NotReformedError(f"ranks {sources[0]} and {rank} have computed different steps up to {claim.step}")
    return Verdict(newest, sources, [rank for rank in range(len(claims)) if rank not in sources])
