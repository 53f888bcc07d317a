"""Background operations that deploy, roll back and delete stacks and set the resulting statuses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Clients
from localcloud.cloudformation.engine.custom_resource import CustomResource, ResponseStore
from localcloud.cloudformation.engine.execution import (
    Deployment,
    delete_all,
    delete_created,
    leftovers,
    restore,
    retention,
)
from localcloud.cloudformation.engine.stack import ChangeSet, Configuration, Stack, now
from localcloud.cloudformation.engine.work import Worker
from localcloud.cloudformation.errors import InvalidRequest, NoSuchStack, TemplateError
from localcloud.cloudformation.provider import Provider, ResourceFailure
from localcloud.cloudformation.resource_types import RECORDED_TYPES
from localcloud.cloudformation.templates.definition import evaluate_output
from localcloud.cloudformation.templates.intrinsics import MakeResolver, Resolver, Unknown, text_of

logger = logging.getLogger(__name__)

# Maximum total wait for running operations when the cloud closes. Their threads end with the process.
CLOSING_SECONDS = 1.0


class Stacks:
    """All of the account's stacks, in all regions, and the operations on them."""

    def __init__(self, clients: Clients, providers: Mapping[str, Provider]) -> None:
        self.clients = clients
        self.providers = providers
        self.responses = ResponseStore()
        self._lock = threading.RLock()
        self._stacks: list[Stack] = []
        self._threads: list[threading.Thread] = []

    def add(self, stack: Stack) -> None:
        """Add a stack."""
        with self._lock:
            self._stacks.append(stack)

    def remove(self, stack: Stack) -> None:
        """Remove a stack whose creation was rejected."""
        with self._lock:
            self._stacks.remove(stack)

    def all(self, region: str) -> list[Stack]:
        """Return a region's stacks, including deleted stacks, newest first."""
        with self._lock:
            return [stack for stack in reversed(self._stacks) if stack.region == region]

    def recorded(self) -> list[dict[str, str]]:
        """Return the existing resources of recorded types."""
        with self._lock:
            existing = [stack for stack in self._stacks if stack.exists]
        return [
            {"stack": stack.name, "logical_id": one.logical_id, "type": one.type_name, "status": one.status}
            for stack in existing
            for one in list(stack.resources.values())
            if one.type_name in RECORDED_TYPES
        ]

    def find(self, name_or_id: str, region: str) -> Stack:
        """Return a stack by ARN, or by name if it has not been deleted.

        Raises:
            NoSuchStack: The stack does not exist.
        """
        for stack in self.all(region):
            if stack.stack_id == name_or_id or (stack.name == name_or_id and stack.status != "DELETE_COMPLETE"):
                return stack
        raise NoSuchStack(name_or_id)

    def resolver_maker(
        self, region: str, configuration: Configuration, imports: set[str], notes: list[str] | None = None
    ) -> MakeResolver:
        """Return a resolver factory for a configuration.

        Args:
            imports: Receives the names of imported exports.
            notes: Receives the reasons for unknown values, for a change set. None: a missing export is an error.
        """

        def import_value(name: str) -> Any:
            for stack in self.all(region):
                if stack.exists and name in stack.exports():
                    imports.add(name)
                    return stack.exports()[name]
            if notes is None:
                raise TemplateError(f"No export named {name} found.")
            notes.append(f"No export named {name}")
            return Unknown(name)

        def dynamic(service: str, rest: str) -> str:
            if service != "ssm":
                raise TemplateError(f"{{{{resolve:{service}:{rest}}}}}: only ssm is emulated")
            return self.read_ssm(rest, region)

        def zones(of: str) -> list[str]:
            answer = self.clients.client("ec2", region=of).describe_availability_zones()
            return sorted(zone["ZoneName"] for zone in answer["AvailabilityZones"])

        def stack_output(stack_name: str, output: str, of: str) -> Any:
            for found in self.find(stack_name, of).outputs:
                if found["OutputKey"] == output:
                    return found["OutputValue"]
            raise TemplateError(f"Stack {stack_name} in {of} has no output {output}")

        def make(ref: Callable[[str], Any], get_att: Callable[[str, str], Any]) -> Resolver:
            return Resolver(
                configuration.template,
                configuration.parameters,
                ref=ref,
                get_att=get_att,
                import_value=import_value,
                dynamic=dynamic,
                zones=zones,
                stack_output=stack_output,
                note=lambda reason: None if notes is None else notes.append(reason),
            )

        return make

    def read_ssm(self, name: str, region: str) -> str:
        """Return a Parameter Store value, by name or name:version.

        Raises:
            TemplateError: The parameter does not exist.
        """
        ssm = self.clients.client("ssm", region=region)
        try:
            return str(ssm.get_parameter(Name=name)["Parameter"]["Value"])
        except (ssm.exceptions.ParameterNotFound, ssm.exceptions.ParameterVersionNotFound):
            raise TemplateError(f"Unable to fetch parameters [{name}] from parameter store for this account.") from None

    def require_role(self, role_arn: str) -> None:
        """Check that CloudFormation can assume a role.

        Raises:
            InvalidRequest: CloudFormation cannot assume it. The message matches CloudFormation's.
        """
        try:
            self.clients.client("ssm", role_arn=role_arn)
        except ApiError as error:
            raise InvalidRequest(f"Role {role_arn} is invalid or cannot be assumed") from error

    def worker(self, stack: Stack, token: str | None) -> Worker:
        """Return the worker for a stack's resources."""

        def custom(type_name: str) -> Provider:
            return CustomResource(type_name, self.responses, self.clients.endpoint_url)

        return Worker(stack, self.clients, self.providers, custom, token)

    def start(self, act: Callable[[], None], stack: Stack, failed_status: str, token: str | None) -> None:
        """Run an operation in a thread. An internal error sets the stack to the failed status."""

        def run() -> None:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - top level of the thread
                logger.exception("operation on stack %s failed", stack.name)
                stack.set_status(failed_status, token, f"Internal failure of the embedded cloud: {error!r}")

        thread = threading.Thread(target=run, name=f"stack {stack.name}", daemon=True)
        with self._lock:
            self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        thread.start()

    def deploy(self, stack: Stack, change_set: ChangeSet, token: str | None) -> None:
        """Execute a change set in this thread. The caller has already set the stack's status to in progress."""
        kind = change_set.kind
        imports: set[str] = set()
        maker = self.resolver_maker(stack.region, change_set.configuration, imports)
        try:
            deployment = Deployment(stack, change_set.configuration, maker, self.worker(stack, token))
        except ApiError as error:
            # For example, an export may have been deleted since the change set was created. No resources have changed.
            change_set.execution_status = "EXECUTE_FAILED"
            stack.set_status(
                "ROLLBACK_COMPLETE" if kind == "CREATE" else "UPDATE_ROLLBACK_COMPLETE", token, error.message
            )
            return
        stack.undo = deployment.undo
        stack.configuration = change_set.configuration
        try:
            deployment.run()
            outputs = self._outputs(stack, change_set.configuration, deployment.resolver)
        except (ResourceFailure, ApiError) as failure:
            change_set.execution_status = "EXECUTE_FAILED"
            reason = failure.message if isinstance(failure, ApiError) else str(failure)
            self._failed(stack, change_set, reason, token)
            return
        stack.outputs, stack.imports = outputs, imports
        if kind == "UPDATE":
            stack.set_status("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", token)
        deployment.clean_up()
        with stack.lock:
            is_deleted = stack.status == "DELETE_IN_PROGRESS"
            if not is_deleted:
                stack.undo = None
                change_set.execution_status = "EXECUTE_COMPLETE"
                stack.set_status(f"{kind}_COMPLETE", token)
        if is_deleted:
            self.delete(stack, token, set(), "CREATE_FAILED")

    def _failed(self, stack: Stack, change_set: ChangeSet, reason: str, token: str | None) -> None:
        kind = change_set.kind
        if stack.status == "DELETE_IN_PROGRESS":
            self.delete(stack, token, set(), "CREATE_FAILED")
            return
        if stack.disable_rollback or change_set.on_failure == "DO_NOTHING":
            stack.set_status(f"{kind}_FAILED", token, f"The following resource(s) failed: {reason}")
            return
        prefix = "ROLLBACK" if kind == "CREATE" else "UPDATE_ROLLBACK"
        verb = "create" if kind == "CREATE" else "update"
        message = f"The following resource(s) failed to {verb}: {reason}"
        if kind == "CREATE":
            stack.deleted = now()  # as on AWS, where the stack can now only be deleted
        stack.begin(f"{prefix}_IN_PROGRESS", "ROLLBACK", token, message)
        if not self._undo(stack, token, prefix, set()):
            return
        with stack.lock:
            # Set both statuses under one lock, so that clients do not see the rollback end before the deletion starts.
            stack.set_status(f"{prefix}_COMPLETE", token)
            doomed = kind == "CREATE" and change_set.on_failure == "DELETE"
            if doomed:
                stack.begin("DELETE_IN_PROGRESS", "DELETE_STACK", token, message)
        if doomed:
            self.delete(stack, token, set(), "ROLLBACK_COMPLETE")

    def roll_back(self, stack: Stack, token: str | None, prefix: str, skip: set[str]) -> None:
        """Roll back a failed operation in this thread.

        Args:
            prefix: Status prefix: ROLLBACK for a create, UPDATE_ROLLBACK for an update.
            skip: Logical IDs of resources that keep their current state.
        """
        if self._undo(stack, token, prefix, skip):
            stack.set_status(f"{prefix}_COMPLETE", token)

    def _undo(self, stack: Stack, token: str | None, prefix: str, skip: set[str]) -> bool:
        """Undo a failed operation and return True, or set the stack's status to failed and return False."""
        undo, worker = stack.undo, self.worker(stack, token)
        assert undo is not None, "only a failed operation can be rolled back"
        failures = restore(stack, undo, worker, skip)
        if failures:
            stack.set_status(f"{prefix}_FAILED", token, f"The following resource(s) failed: {'; '.join(failures)}")
            return False
        if prefix == "UPDATE_ROLLBACK":
            stack.set_status("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", token)
        failures = delete_created(stack, undo, worker)
        if failures and prefix == "ROLLBACK":
            stack.set_status("ROLLBACK_FAILED", token, f"The following resource(s) failed: {'; '.join(failures)}")
            return False
        stack.outputs, stack.imports = undo.outputs, undo.imports
        stack.undo = None
        return True

    def _outputs(self, stack: Stack, configuration: Configuration, resolver: Resolver) -> list[dict[str, Any]]:
        """Evaluate the template's outputs.

        Raises:
            TemplateError: Another stack has an export with the same name, or an imported export would change.
        """
        outputs = []
        for name, item in configuration.template.get("Outputs", {}).items():
            if not resolver.includes(item):
                continue
            outputs.append({key: text_of(value) for key, value in evaluate_output(resolver, name, item).items()})
        new = {o["ExportName"]: o["OutputValue"] for o in outputs if "ExportName" in o}
        for other in self.all(stack.region):
            if other is stack or not other.exists:
                continue
            for name in sorted(new.keys() & other.exports().keys()):
                raise TemplateError(f"Export with name {name} is already exported by stack {other.name}")
        for name, value in stack.exports().items():
            users = self.importers(name, stack.region)
            if users and new.get(name) != value:
                does = "Cannot update" if name in new else "Delete canceled. Cannot delete"
                raise TemplateError(f"{does} export {name} as it is in use by {' and '.join(users)}.")
        return outputs

    def importers(self, export: str, region: str) -> list[str]:
        """Return the names of the stacks that import an export."""
        return [stack.name for stack in self.all(region) if stack.exists and export in stack.imports]

    def delete(self, stack: Stack, token: str | None, retain: set[str], before: str) -> None:
        """Delete a stack's resources in this thread, dependents first.

        Args:
            retain: Logical IDs of resources to keep.
            before: Status that the stack returns to if the deletion is cancelled.
        """
        for name in stack.exports():
            users = self.importers(name, stack.region)
            if users:
                reason = f"Delete canceled. Cannot delete export {name} as it is in use by {' and '.join(users)}."
                stack.set_status(before, token, reason)
                return
        doomed = [
            (resource, "Retain" if name in retain else retention(resource, "DeletionPolicy"))
            for name, resource in stack.resources.items()
        ]
        if stack.undo is not None:
            doomed += leftovers(stack.undo)
        failures = delete_all(self.worker(stack, token), doomed)
        if failures:
            names = sorted({failure.split(":", 1)[0] for failure in failures})
            stack.set_status(
                "DELETE_FAILED", token, f"The following resource(s) failed to delete: [{', '.join(names)}]. "
            )
            return
        stack.undo = None
        stack.deleted = now()
        stack.set_status("DELETE_COMPLETE", token)

    def close(self) -> None:
        """Stop waiting for custom resources, and wait up to CLOSING_SECONDS for running operations."""
        self.responses.close()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout=CLOSING_SECONDS / len(threads))
