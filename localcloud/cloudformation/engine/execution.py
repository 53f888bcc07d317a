"""Runs an operation on a stack's resources, in dependency order and in parallel where possible.

`Deployment` applies a template to a stack and records its steps in the stack's undo log. `restore` and
`delete_created` use this log to roll the stack back, immediately or later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

from localcloud.api import ApiError
from localcloud.cloudformation.engine.stack import Configuration, Resource, Stack, Undo
from localcloud.cloudformation.engine.work import Worker
from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.resource_types import is_taggable
from localcloud.cloudformation.templates.definition import changed_attributes, evaluate
from localcloud.cloudformation.templates.graph import dependencies, reverse
from localcloud.cloudformation.templates.intrinsics import MakeResolver, Resolver
from localcloud.cloudformation.updates.replacement import property_changes, replaces

MAX_PARALLEL = 8


class Deployment:
    """Applies a template to a new or existing stack."""

    def __init__(self, stack: Stack, configuration: Configuration, make_resolver: MakeResolver, worker: Worker) -> None:
        self.undo = stack.undo or Undo(stack.configuration, stack.outputs, stack.imports, dict(stack.resources))
        self._stack = stack
        self._worker = worker
        self._template = configuration.template
        self._tags = configuration.tags
        self._tags_changed = configuration.tags != stack.configuration.tags
        self._before = dict(stack.resources)
        self.resolver: Resolver = make_resolver(self._ref, self._get_att)
        self._included = {n for n, item in self._template["Resources"].items() if self.resolver.includes(item)}
        self._graph = dependencies(self._template, self._included)

    def run(self) -> None:
        """Create and update all resources in the template.

        Raises:
            ResourceFailure: A resource failed or the operation was cancelled. The undo log allows a rollback.
        """
        self._worker.tags = self._tags
        failures = in_parallel(self._graph, self._provision, stop=self._stack.cancelled)
        if failures:
            raise failures[0]
        if self._stack.cancelled.is_set():
            raise ResourceFailure("Resource update cancelled")

    def clean_up(self) -> None:
        """Delete removed and replaced resources. A failed deletion is recorded as an event and then ignored."""
        removed = [
            (r, retention(r, "DeletionPolicy")) for name, r in self._before.items() if name not in self._included
        ]
        # The new template's UpdateReplacePolicy applies to the old resource.
        replaced = [
            (old, retention(self._stack.resources.get(name, old), "UpdateReplacePolicy"))
            for name, old in self.undo.replaced.items()
        ]
        orphans = [(r, "Delete") for r in self.undo.orphans]
        delete_all(self._worker, [*removed, *replaced, *orphans])
        for resource, _ in removed:
            self._stack.drop(resource)

    def _provision(self, logical_id: str) -> None:
        """Create, update, replace or keep a resource."""
        definition = self._template["Resources"][logical_id]
        needs = frozenset(self._graph[logical_id])
        before = self._before.get(logical_id)
        try:
            after = evaluate(self.resolver, definition)
        except (ApiError, ResourceFailure) as error:
            reason = error.message if isinstance(error, ApiError) else str(error)
            self._worker.fail(before or Resource(logical_id, definition["Type"], {"Properties": {}}), reason)
        if before is None or before.status == "CREATE_FAILED":
            if before is not None:
                # An earlier operation failed and only partially created this resource, so create a new one.
                self.undo.orphans.append(before)
            self.undo.created.add(logical_id)
            self._worker.create(logical_id, after, needs)
            return
        changes = property_changes(before.type_name, before.definition, after)
        problems = [change.problem for change in changes if change.problem is not None]
        if problems:
            self._worker.fail(before, "; ".join(problems))
        retagged = self._tags_changed and is_taggable(before.type_name)
        if replaces(changes) == "True":
            self._replace(before, after, needs)
        elif changes or retagged or before.status == "UPDATE_FAILED":
            self._update(before, after, needs)
        elif changed_attributes(before.definition, after) or before.needs != needs:
            self._stack.put(replace(before, definition=after, needs=needs))

    def _update(self, before: Resource, after: Mapping[str, Any], needs: frozenset[str]) -> None:
        name = before.logical_id
        is_original = self._is_original(name)
        if is_original:
            self.undo.updated[name] = None
        try:
            done = self._worker.update(before, after, needs)
        except ResourceFailure:
            self.undo.attempted[name] = after
            raise
        if done.physical_id != before.physical_id:
            # A custom resource reports a replacement by returning a new physical ID. The clean-up deletes the old one.
            self._record_replacement(before, is_original)

    def _replace(self, before: Resource, after: Mapping[str, Any], needs: frozenset[str]) -> None:
        is_original = self._is_original(before.logical_id)
        try:
            self._worker.replace(before, after, needs)
        except ResourceFailure as failure:
            if failure.physical_id:
                self.undo.orphans.append(replace(before, physical_id=failure.physical_id))
            raise
        self._record_replacement(before, is_original)

    def _is_original(self, name: str) -> bool:
        return name not in self.undo.created and name not in self.undo.replaced

    def _record_replacement(self, before: Resource, is_original: bool) -> None:
        if is_original:
            self.undo.replaced[before.logical_id] = before
        else:
            self.undo.orphans.append(before)

    def _ref(self, logical_id: str) -> Any:
        return self._resource(logical_id).physical_id

    def _get_att(self, logical_id: str, attribute: str) -> Any:
        resource = self._resource(logical_id)
        try:
            return resource.attribute(attribute)
        except KeyError:
            available = ", ".join(sorted(resource.attributes)) or "none"
            raise ResourceFailure(
                f"{logical_id} ({resource.type_name}) has no attribute {attribute}; available: {available}"
            ) from None

    def _resource(self, logical_id: str) -> Resource:
        found = self._stack.resources.get(logical_id)
        if found is None:
            raise ResourceFailure(f"{logical_id} is referenced but does not exist: its condition is false")
        return found


def restore(stack: Stack, undo: Undo, worker: Worker, skip: set[str]) -> list[str]:
    """Restore the resources that a failed operation updated or replaced; return the reasons for failures.

    Args:
        skip: Logical IDs of resources that keep their current state.
    """
    if undo.configuration.template_body:  # a rolled-back creation keeps its template and parameters
        stack.configuration = undo.configuration
    worker.tags = undo.configuration.tags
    for name, old in undo.replaced.items():
        undo.orphans.append(stack.resources[name])
        stack.put(old)
    undo.replaced.clear()
    failures = []
    for name in reversed(list(undo.updated)):
        original, current = undo.before[name], stack.resources[name]
        if name not in skip:
            current = replace(current, definition=undo.attempted.get(name, current.definition))
            try:
                worker.update(current, original.definition, original.needs)
            except ResourceFailure as failure:
                failures.append(str(failure))
                continue
        del undo.updated[name]
        undo.attempted.pop(name, None)
    for name, original in undo.before.items():
        if name not in undo.updated and name not in skip:
            stack.put(replace(original, attributes=stack.resources[name].attributes))
    return failures


def delete_created(stack: Stack, undo: Undo, worker: Worker) -> list[str]:
    """Delete the resources that a failed operation created; return the reasons for failures."""

    def policy(resource: Resource) -> str:
        # The resource has never been used, so do not take a snapshot.
        declared = resource.definition.get("DeletionPolicy")
        return "Retain" if declared == "Retain" and not stack.retain_except_on_create else "Delete"

    created = [stack.resources[name] for name in undo.created if name in stack.resources]
    return delete_all(worker, [*((r, policy(r)) for r in created), *((r, "Delete") for r in undo.orphans)])


def leftovers(undo: Undo) -> list[tuple[Resource, str]]:
    """Return a failed operation's resources that are no longer in the stack, with their retention policies."""
    old = [(r, retention(r, "UpdateReplacePolicy")) for r in undo.replaced.values()]
    return [*old, *((r, "Delete") for r in undo.orphans)]


def retention(resource: Resource, name: str) -> str:
    """Return Delete, Retain or Snapshot according to a resource's DeletionPolicy or UpdateReplacePolicy."""
    policy = str(resource.definition.get(name, "Delete"))
    return "Retain" if policy == "RetainExceptOnCreate" else policy


def in_parallel(
    graph: Mapping[str, set[str]],
    act: Callable[[str], None],
    *,
    stop: threading.Event | None = None,
    keep_going: bool = False,
) -> list[ResourceFailure]:
    """Call `act` for every node in a graph after its dependencies have finished; return the failures.

    Args:
        stop: Event that prevents further calls from starting.
        keep_going: Whether, after a failure, to continue with nodes that do not depend on the failed node.
    """
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    running: dict[Future[None], str] = {}
    failures: list[ResourceFailure] = []
    with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="resource") as pool:
        while sorter.is_active():
            if (keep_going or not failures) and not (stop is not None and stop.is_set()):
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


def delete_all(worker: Worker, doomed: list[tuple[Resource, str]]) -> list[str]:
    """Delete resources according to their retention policies, dependents first; return the reasons for failures.

    If a deletion fails, the resources that the failed resource depends on are kept.
    """
    keyed = {f"{resource.logical_id}/{resource.physical_id}": (resource, policy) for resource, policy in doomed}
    needs = {
        key: {other for other, (needed, _) in keyed.items() if needed.logical_id in resource.needs}
        for key, (resource, _) in keyed.items()
    }

    def delete(key: str) -> None:
        worker.delete(*keyed[key])

    return [str(failure) for failure in in_parallel(reverse(needs), delete, keep_going=True)]
