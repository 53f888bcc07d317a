"""The state of a managed cluster, and what the commands print about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from trainstack.engines.engine import View
from trainstack.observe.why import Explanation
from trainstack.session import FAILED, CommandError

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Part:
    """A node group, an instance group, or a queue.

    Attributes:
        status: The service's status, such as ACTIVE.
        detail: Sizes and types.
    """

    kind: str
    name: str
    status: str
    detail: str


@dataclass(frozen=True)
class ClusterState:
    """A cluster as its service describes it.

    Attributes:
        service: Name of the service.
        name: Name of the cluster.
        status: The service's status; empty: the cluster does not exist.
        is_ready: Whether the cluster and all of its parts accept jobs.
        problems: Errors and failed parts, as reported by the service.
        access: How to open a shell on the machine on which the other commands run; empty: they run anywhere.
    """

    service: str
    name: str
    status: str
    is_ready: bool
    parts: tuple[Part, ...]
    problems: tuple[str, ...]
    access: str

    @classmethod
    def missing(cls, service: str, name: str) -> ClusterState:
        """Return the state of a cluster that does not exist."""
        return cls(service, name, "", False, (), (), "")

    def summary(self) -> str:
        """Return the state as one line."""
        return f"{self.service} cluster {self.name}: {self.status or 'does not exist'}"

    def lines(self) -> list[str]:
        """Return the state as lines for a terminal."""
        parts = [f"{each.kind} {each.name}: {each.status}, {each.detail}".removesuffix(", ") for each in self.parts]
        return [self.summary(), *parts, *(f"problem: {each}" for each in self.problems)]


class Cluster(Protocol):
    """A cluster that a service manages."""

    def read(self) -> ClusterState:
        """Return the cluster's state. Raises CommandError."""


@dataclass(frozen=True)
class ClusterStatus:
    """The status of a cluster and, where the jobs can be observed, of the run."""

    state: ClusterState
    run: View | None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"cluster": dataclasses.asdict(self.state), "run": None if self.run is None else self.run.to_json()}

    def lines(self) -> list[str]:
        """Return lines for a terminal."""
        found = self.state.lines()
        if self.run is not None:
            return [*found, *self.run.lines()]
        return [*found, f"for the run: {self.state.access}"] if self.state.status else found


def explain_cluster(state: ClusterState) -> Explanation | None:
    """Return why a cluster does not accept jobs, or None if it does."""
    if not state.status:
        sentence = f"The {state.service} cluster {state.name} does not exist."
        return Explanation("idle", "no_cluster", sentence, (), "run `trainstack up FILE`")
    if state.is_ready:
        return None
    failed = bool(state.problems)
    sentence = f"The {state.service} cluster {state.name} {'has a problem' if failed else 'is not ready yet'}."
    evidence = (*state.problems, *state.lines()[: 1 + len(state.parts)])
    remedy = "correct the cause, then run `trainstack up FILE`" if failed else "wait until it is ready"
    return Explanation("waiting", "cluster_failed" if failed else "cluster_not_ready", sentence, evidence, remedy)


def ask(call: Callable[[], Answer], what: str) -> Answer:
    """Return the answer of a call to AWS.

    Raises:
        CommandError: AWS rejects the call, or does not respond.
        ClientError: The resource does not exist.
    """
    try:
        return call()
    except ClientError as error:
        if is_missing(error):
            raise
        raise CommandError(FAILED, f"{what}: {error}") from error
    except BotoCoreError as error:
        raise CommandError(FAILED, f"{what}: {error}") from error


def is_missing(error: ClientError) -> bool:
    """Return whether an error reports a resource that does not exist."""
    return error.response["Error"]["Code"] in ("ResourceNotFoundException", "ResourceNotFound")
