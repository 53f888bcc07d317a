"""Runs one operation on a stack: resources in dependency order, in parallel where they are independent.

What it does is noted in `Undo`, so that a failed operation can be taken back, at once or later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Any

from localcloud.api import ApiError
from localcloud.cloudformation.definition import changed_attributes, evaluate
from localcloud.cloudformation.graph import dependencies, reverse
from localcloud.cloudformation.intrinsics import Resolver
from localcloud.cloudformation.planning import MakeResolver
from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.replacement import property_changes, replaces
from localcloud.cloudformation.schemas import is_taggable
from localcloud.cloudformation.stack import Configuration, Resource, Stack
from localcloud.cloudformation.work import Worker

PARALLEL = 8


@dataclass
class Undo:
    """What a roll-back must put back, by logical id; lives on when an operation is left failed and another follows it.

    `before` is every resource as it was at first; `attempted` what a failed change may have reached in part; `orphans`
    are resources that go whether the stack goes forward or back, such as successors that were themselves replaced.
    """

    configuration: Configuration
    outputs: list[dict[str, Any]]
    imports: set[str]
    before: Mapping[str, Resource]
    made: set[str] = field(default_factory=set)
    changed: dict[str, None] = field(default_factory=dict)
    attempted: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    replaced: dict[str, Resource] = field(default_factory=dict)
    orphans: list[Resource] = field(default_factory=list)


class Deployment:
    """One create or update of a stack to a template."""

    def __init__(self, stack: Stack, configuration: Configuration, make_resolver: MakeResolver, worker: Worker) -> None:
        self.configuration = configuration
        self.worker = worker
        earlier = stack.pending
        self._stack = stack
        self._template = configuration.template
        self._before = dict(stack.resources)
        self.undo: Undo = (
            earlier.undo
            if earlier is not None
            else Undo(stack.configuration, stack.outputs, stack.imports, self._before)
        )
        self._tags_changed = configuration.tags != stack.configuration.tags
        self._cancelled = threading.Event()
        self.resolver: Resolver = make_resolver(self._ref, self._get_att)
        self._included = {n for n, item in self._template["Resources"].items() if self.resolver.includes(item)}
        self._graph = dependencies(self._template, self._included)

    def run(self) -> None:
        """Make every resource as the template says.

        Raises:
            ResourceFailure: One failed, or the operation was cancelled; `roll_back` puts back what was done.
        """
        self.worker.tags = self.configuration.tags
        failures = in_parallel(self._graph, self._make, stop=self._cancelled)
        if failures:
            raise failures[0]
        if self._cancelled.is_set():
            raise ResourceFailure("Resource update cancelled")

    def cancel(self) -> None:
        """Start nothing more; `run` raises when what is under way has ended."""
        self._cancelled.set()

    def clean_up(self) -> None:
        """Remove replaced and no longer wanted resources; one that will not go is told by its events and forgotten."""
        gone = [(r, retention(r, "DeletionPolicy")) for name, r in self._before.items() if name not in self._included]
        replaced = [(r, _successor_retention(r, self._stack)) for r in self.undo.replaced.values()]
        orphans = [(r, "Delete") for r in self.undo.orphans]
        remove_all(self.worker, [*gone, *replaced, *orphans])
        for resource, _ in gone:
            self._stack.drop(resource)

    def restore(self, skip: set[str]) -> list[str]:
        """Put everything that was changed or replaced back, but nothing of `skip`; return what could not be."""
        undo, stack = self.undo, self._stack
        stack.configuration = undo.configuration
        self.worker.tags = undo.configuration.tags
        for name, old in undo.replaced.items():
            undo.orphans.append(stack.resources[name])
            stack.put(old)
        undo.replaced.clear()
        failures = []
        for name in reversed(list(undo.changed)):
            original, current = undo.before[name], stack.resources[name]
            if name not in skip:
                current = replace(current, definition=undo.attempted.get(name, current.definition))
                try:
                    self.worker.update(current, original.definition, original.needs)
                except ResourceFailure as failure:
                    failures.append(str(failure))
                    continue
            del undo.changed[name]
            undo.attempted.pop(name, None)
        for name, original in undo.before.items():
            if name not in undo.changed and name not in skip:
                stack.put(replace(original, attributes=stack.resources[name].attributes))
        return failures

    def remove_made(self) -> list[str]:
        """Remove what the failed operation had made; return the reasons of what would not go."""
        made = [self._stack.resources[name] for name in self.undo.made if name in self._stack.resources]
        doomed = [(r, self._creation_retention(r)) for r in made]
        return remove_all(self.worker, [*doomed, *((r, "Delete") for r in self.undo.orphans)])

    def _creation_retention(self, resource: Resource) -> str:
        """Return the policy over a resource whose creation is taken back; a snapshot would hold nothing."""
        policy = resource.definition.get("DeletionPolicy")
        return "Retain" if policy == "Retain" and not self._stack.retain_except_on_create else "Delete"

    def leftovers(self) -> list[tuple[Resource, str]]:
        """Return what the failed operation left beside the stack's resources, with the policies for its removal."""
        old = [(r, retention(r, "UpdateReplacePolicy")) for r in self.undo.replaced.values()]
        return [*old, *((r, "Delete") for r in self.undo.orphans)]

    def _make(self, logical_id: str) -> None:
        definition = self._template["Resources"][logical_id]
        needs = frozenset(self._graph[logical_id])
        before = self._before.get(logical_id)
        try:
            after = evaluate(self.resolver, definition)
        except (ApiError, ResourceFailure) as error:
            reason = error.message if isinstance(error, ApiError) else str(error)
            self.worker.refuse(before or Resource(logical_id, definition["Type"], {"Properties": {}}), reason)
        if before is None or before.status == "CREATE_FAILED":
            if before is not None:
                # Half-made by an operation that was left failed: it is made anew.
                self.undo.orphans.append(before)
            self.undo.made.add(logical_id)
            self.worker.create(logical_id, after, needs)
            return
        changes = property_changes(before.type_name, before.definition, after)
        problems = [change.problem for change in changes if change.problem is not None]
        if problems:
            self.worker.refuse(before, "; ".join(problems))
        retagged = self._tags_changed and is_taggable(before.type_name)
        if replaces(changes) == "True":
            self._replace(before, after, needs)
        elif changes or retagged or before.status == "UPDATE_FAILED":
            self._update(before, after, needs)
        elif changed_attributes(before.definition, after) or before.needs != needs:
            self._stack.put(replace(before, definition=after, needs=needs))

    def _update(self, before: Resource, after: Mapping[str, Any], needs: frozenset[str]) -> None:
        name = before.logical_id
        is_original = name not in self.undo.made and name not in self.undo.replaced
        if is_original:
            self.undo.changed[name] = None
        try:
            done = self.worker.update(before, after, needs)
        except ResourceFailure:
            self.undo.attempted[name] = after
            raise
        if done.physical_id != before.physical_id:
            # A custom resource's way to say that it made another; the old one goes in the clean-up.
            self._succeed(before, is_original)

    def _replace(self, before: Resource, after: Mapping[str, Any], needs: frozenset[str]) -> None:
        name = before.logical_id
        is_original = name not in self.undo.made and name not in self.undo.replaced
        try:
            self.worker.replace(before, after, needs)
        except ResourceFailure as failure:
            if failure.physical_id:
                self.undo.orphans.append(replace(before, physical_id=failure.physical_id))
            raise
        self._succeed(before, is_original)

    def _succeed(self, before: Resource, is_original: bool) -> None:
        if is_original:
            self.undo.replaced[before.logical_id] = before
        else:
            self.undo.orphans.append(before)

    def _ref(self, logical_id: str) -> Any:
        return self._resource(logical_id).physical_id

    def _get_att(self, logical_id: str, attribute: str) -> Any:
        resource = self._resource(logical_id)
        if attribute not in resource.attributes:
            have = ", ".join(sorted(resource.attributes)) or "none"
            raise ResourceFailure(
                f"{logical_id} ({resource.type_name}) has no attribute {attribute}; its attributes here: {have}"
            )
        return resource.attributes[attribute]

    def _resource(self, logical_id: str) -> Resource:
        found = self._stack.resources.get(logical_id)
        if found is None:
            raise ResourceFailure(f"{logical_id} is referred to, but does not exist: its condition is false")
        return found


def retention(resource: Resource, name: str) -> str:
    """Return Delete, Retain or Snapshot by a resource's DeletionPolicy or UpdateReplacePolicy."""
    policy = str(resource.definition.get(name, "Delete"))
    return "Retain" if policy == "RetainExceptOnCreate" else policy


def _successor_retention(old: Resource, stack: Stack) -> str:
    """The new template's UpdateReplacePolicy decides over the old resource."""
    return retention(stack.resources.get(old.logical_id, old), "UpdateReplacePolicy")


def in_parallel(
    graph: Mapping[str, set[str]],
    act: Callable[[str], None],
    *,
    stop: threading.Event | None = None,
    go_on: bool = False,
) -> list[ResourceFailure]:
    """Act on every node of a graph, each after what it needs; return the failures.

    Args:
        stop: Nothing more is started once it is set.
        go_on: Whether nodes that do not need a failed one are still acted on.
    """
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    running: dict[Future[None], str] = {}
    failures: list[ResourceFailure] = []
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="resource") as pool:
        while sorter.is_active():
            if (go_on or not failures) and not (stop is not None and stop.is_set()):
                for name in sorter.get_ready():
                    running[pool.submit(act, name)] = name
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                error = future.exception()
                if error is None:
                    sorter.done(name)
                elif isinstance(error, ResourceFailure):
                    failures.append(error)
                else:
                    raise error
    return failures


def remove_all(worker: Worker, doomed: list[tuple[Resource, str]]) -> list[str]:
    """Remove resources by their policies, dependants first; what a resource that stays needs stays too.

    Returns the reasons of those that would not go.
    """
    keyed = {f"{resource.logical_id}/{resource.physical_id}": (resource, policy) for resource, policy in doomed}
    needs = {
        key: {other for other, (needed, _) in keyed.items() if needed.logical_id in resource.needs}
        for key, (resource, _) in keyed.items()
    }

    def remove(key: str) -> None:
        worker.delete(*keyed[key])

    return [str(failure) for failure in in_parallel(reverse(needs), remove, go_on=True)]
