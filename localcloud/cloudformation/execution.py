"""Runs an operation on a stack: resources in dependency order, in parallel where they are independent; all back on failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Any

from localcloud.api import ApiError
from localcloud.cloudformation.graph import dependencies, reverse
from localcloud.cloudformation.intrinsics import Resolver
from localcloud.cloudformation.planning import MakeResolver
from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.replacement import needs_replacement
from localcloud.cloudformation.stack import Resource, Stack
from localcloud.cloudformation.work import Worker

PARALLEL = 8


@dataclass
class Undo:
    """What a failed operation must put back, in the order it was done."""

    made: list[Resource] = field(default_factory=list)
    changed: list[Resource] = field(default_factory=list)
    replaced: list[Resource] = field(default_factory=list)


class Deployment:
    """One create or update of a stack to a template."""

    def __init__(self, stack: Stack, template: Mapping[str, Any], make_resolver: MakeResolver, worker: Worker) -> None:
        self._stack = stack
        self._template = template
        self._worker = worker
        self._undo = Undo()
        self.resolver: Resolver = make_resolver(self._ref, self._get_att)
        self._included = {name for name, item in template["Resources"].items() if self.resolver.includes(item)}
        self._graph = dependencies(template, self._included)
        self._before = dict(stack.resources)

    def run(self) -> None:
        """Make every resource as the template says.

        Raises:
            ResourceFailure: One failed; `roll_back` puts back what was done.
        """
        in_parallel(self._graph, self._make)

    def clean_up(self) -> list[str]:
        """Remove replaced and no longer wanted resources; return the reasons of those that would not go."""
        gone = [r for name, r in self._before.items() if name not in self._included]
        failures = remove_all(self._worker, self._undo.replaced, "UpdateReplacePolicy")
        failures += remove_all(self._worker, gone, "DeletionPolicy")
        with self._stack.lock:
            for resource in gone:
                self._stack.resources.pop(resource.logical_id, None)
        return failures

    def roll_back(self) -> list[str]:
        """Put the stack's resources back to what they were; return the reasons of what could not be."""
        failures = []
        successors = [
            self._stack.resources[old.logical_id]
            for old in self._undo.replaced
            if self._stack.resources[old.logical_id].physical_id != old.physical_id
        ]
        for old in reversed(self._undo.changed):
            current = self._stack.resources[old.logical_id]
            try:
                self._keep(self._worker.update(current, old.definition, old.properties))
            except ResourceFailure as failure:
                failures.append(str(failure))
        with self._stack.lock:
            for old in self._undo.replaced:
                self._stack.resources[old.logical_id] = old
        failures += remove_all(self._worker, [*successors, *self._undo.made], "DeletionPolicy", rolling_back=True)
        with self._stack.lock:
            for resource in self._undo.made:
                self._stack.resources.pop(resource.logical_id, None)
        return failures

    def _make(self, logical_id: str) -> None:
        definition = self._template["Resources"][logical_id]
        try:
            properties = self.resolver.resolve(definition.get("Properties", {}))
        except ApiError as error:
            raise ResourceFailure(f"{logical_id}: {error.message}") from error
        before = self._before.get(logical_id)
        if before is None:
            made = self._worker.create(logical_id, definition, properties)
            self._undo.made.append(self._keep(made))
            return
        changed = {
            name
            for name in before.properties.keys() | properties.keys()
            if before.properties.get(name) != properties.get(name)
        }
        kind_changed = before.type_name != definition["Type"]
        if kind_changed or needs_replacement(before.type_name, changed, before.properties, properties):
            self._undo.replaced.append(before)
            self._keep(self._worker.replace(before, definition, properties))
        elif changed:
            self._undo.changed.append(before)
            self._keep(self._worker.update(before, definition, properties))
        else:
            self._keep(replace(before, definition=definition))

    def _keep(self, resource: Resource) -> Resource:
        kept = replace(resource, needs=frozenset(self._graph.get(resource.logical_id, ())))
        with self._stack.lock:
            self._stack.resources[resource.logical_id] = kept
        return kept

    def _ref(self, logical_id: str) -> Any:
        return self._resource(logical_id).physical_id

    def _get_att(self, logical_id: str, attribute: str) -> Any:
        resource = self._resource(logical_id)
        if attribute not in resource.attributes:
            have = sorted(resource.attributes)
            raise ResourceFailure(f"{logical_id} ({resource.type_name}) has no attribute {attribute}; it has {have}")
        return resource.attributes[attribute]

    def _resource(self, logical_id: str) -> Resource:
        if logical_id not in self._stack.resources:
            raise ResourceFailure(f"{logical_id} does not exist: its condition is false")
        return self._stack.resources[logical_id]


def in_parallel(graph: Mapping[str, set[str]], act: Callable[[str], None]) -> None:
    """Act on every node of a graph, each after what it needs; after a failure start nothing more, wait, and raise it."""
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    running: dict[Future[None], str] = {}
    failure: ResourceFailure | None = None
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="resource") as pool:
        while sorter.is_active():
            if failure is None:
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
                    failure = failure or error
                else:
                    raise error
    if failure is not None:
        raise failure


def remove_all(worker: Worker, resources: list[Resource], policy: str, *, rolling_back: bool = False) -> list[str]:
    """Remove resources, dependants first; go on past failures and return their reasons."""
    by_id = {resource.logical_id: resource for resource in resources}
    graph = reverse({name: set(resource.needs) & by_id.keys() for name, resource in by_id.items()})
    failures: list[str] = []

    def remove(name: str) -> None:
        try:
            worker.delete(by_id[name], policy, rolling_back=rolling_back)
        except ResourceFailure as failure:
            failures.append(str(failure))

    in_parallel(graph, remove)
    return failures
