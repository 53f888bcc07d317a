"""What is done to stacks, in the background: deploy a change set, roll back, delete, and the statuses on the way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Clients
from localcloud.cloudformation.custom_resource import CustomResource, Mailbox
from localcloud.cloudformation.errors import NoSuchStack, TemplateError
from localcloud.cloudformation.execution import Deployment, remove_all, retention
from localcloud.cloudformation.intrinsics import Resolver
from localcloud.cloudformation.planning import MakeResolver
from localcloud.cloudformation.provider import Provider, ResourceFailure
from localcloud.cloudformation.stack import ChangeSet, Configuration, Stack, now
from localcloud.cloudformation.work import Worker

logger = logging.getLogger(__name__)

# A cloud that closes waits this long, all in all, for operations to end; their threads end with the process.
CLOSING_SECONDS = 1.0


class Stacks:
    """All stacks of the account, in all regions, and the operations on them."""

    def __init__(self, clients: Clients, providers: Mapping[str, Provider]) -> None:
        self.clients = clients
        self.providers = providers
        self.mailbox = Mailbox()
        self._lock = threading.RLock()
        self._stacks: list[Stack] = []
        self._threads: list[threading.Thread] = []

    def add(self, stack: Stack) -> None:
        """Make a stack known."""
        with self._lock:
            self._stacks.append(stack)

    def remove(self, stack: Stack) -> None:
        """Forget a stack that never came to be."""
        with self._lock:
            self._stacks.remove(stack)

    def all(self, region: str) -> list[Stack]:
        """Return a region's stacks, newest first, deleted ones included."""
        with self._lock:
            return [stack for stack in reversed(self._stacks) if stack.region == region]

    def find(self, name_or_id: str, region: str) -> Stack:
        """Return a stack by name (not deleted) or by ARN.

        Raises:
            NoSuchStack: There is none.
        """
        for stack in self.all(region):
            if stack.stack_id == name_or_id or (stack.name == name_or_id and stack.status != "DELETE_COMPLETE"):
                return stack
        raise NoSuchStack(name_or_id)

    def resolver_maker(self, region: str, configuration: Configuration, imports: set[str]) -> MakeResolver:
        """Return what makes a resolver for a configuration; used exports are noted in `imports`."""

        def import_value(name: str) -> Any:
            for stack in self.all(region):
                if stack.exists and name in stack.exports():
                    imports.add(name)
                    return stack.exports()[name]
            raise TemplateError(f"No export named {name} found.")

        def dynamic(service: str, rest: str) -> str:
            if service != "ssm":
                raise TemplateError(f"{{{{resolve:{service}:{rest}}}}}: only ssm is resolved here")
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
            )

        return make

    def read_ssm(self, name: str, region: str) -> str:
        """Return a Parameter Store value, by name or name:version.

        Raises:
            TemplateError: There is no such parameter.
        """
        ssm = self.clients.client("ssm", region=region)
        try:
            return str(ssm.get_parameter(Name=name)["Parameter"]["Value"])
        except (ssm.exceptions.ParameterNotFound, ssm.exceptions.ParameterVersionNotFound):
            raise TemplateError(f"Unable to fetch parameters [{name}] from parameter store for this account.") from None

    def worker(self, stack: Stack, token: str | None) -> Worker:
        """Return what works on a stack's resources."""

        def custom(type_name: str) -> Provider:
            return CustomResource(type_name, self.mailbox, self.clients.endpoint_url)

        return Worker(stack, self.clients, self.providers, custom, token)

    def start(self, act: Callable[[], None], stack: Stack, failed_status: str, token: str | None) -> None:
        """Run an operation in a thread; a fault of the engine fails the stack in words."""

        def run() -> None:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - the top of a thread: nobody else can tell the user
                logger.exception("operation on %s", stack.name)
                stack.set_status(failed_status, token, f"Internal failure of the local cloud: {error!r}")

        thread = threading.Thread(target=run, name=f"stack {stack.name}", daemon=True)
        with self._lock:
            self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        thread.start()

    def deploy(self, stack: Stack, change_set: ChangeSet, token: str | None) -> None:
        """Carry out a change set in this thread; the stack's status has said so already."""
        kind = change_set.kind
        imports: set[str] = set()
        maker = self.resolver_maker(stack.region, change_set.configuration, imports)
        try:
            deployment = Deployment(stack, change_set.configuration, maker, self.worker(stack, token))
        except ApiError as error:
            # An export went away since the change set was made; nothing was touched.
            change_set.execution_status = "EXECUTE_FAILED"
            stack.set_status(
                "ROLLBACK_COMPLETE" if kind == "CREATE" else "UPDATE_ROLLBACK_COMPLETE", token, error.message
            )
            return
        stack.pending = deployment
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
        stack.pending = None
        change_set.execution_status = "EXECUTE_COMPLETE"
        stack.set_status(f"{kind}_COMPLETE", token)

    def _failed(self, stack: Stack, change_set: ChangeSet, reason: str, token: str | None) -> None:
        kind = change_set.kind
        if stack.disable_rollback or change_set.on_failure == "DO_NOTHING":
            stack.set_status(f"{kind}_FAILED", token, f"The following resource(s) failed: {reason}")
            return
        prefix, operation = ("ROLLBACK", "ROLLBACK") if kind == "CREATE" else ("UPDATE_ROLLBACK", "ROLLBACK")
        verb = "create" if kind == "CREATE" else "update"
        words = f"The following resource(s) failed to {verb}: {reason}"
        stack.begin(f"{prefix}_IN_PROGRESS", operation, token, words)
        if not self._take_back(stack, token, prefix, set()):
            return
        with stack.lock:
            # Whoever waits for the end must not take the roll-back for it when a deletion follows.
            stack.set_status(f"{prefix}_COMPLETE", token)
            doomed = kind == "CREATE" and change_set.on_failure == "DELETE"
            if doomed:
                stack.begin("DELETE_IN_PROGRESS", "DELETE_STACK", token, words)
        if doomed:
            self.delete(stack, token, set(), "ROLLBACK_COMPLETE")

    def roll_back(self, stack: Stack, token: str | None, prefix: str, skip: set[str]) -> None:
        """Take back a failed operation in this thread.

        Args:
            prefix: ROLLBACK for a create, UPDATE_ROLLBACK for an update.
            skip: Logical ids that stay as they are.
        """
        if self._take_back(stack, token, prefix, skip):
            stack.set_status(f"{prefix}_COMPLETE", token)

    def _take_back(self, stack: Stack, token: str | None, prefix: str, skip: set[str]) -> bool:
        """Take back a failed operation; return whether all went, and say so in the stack's status if not."""
        deployment = stack.pending
        assert deployment is not None, "only a failed operation is rolled back"
        deployment.worker = self.worker(stack, token)
        failures = deployment.restore(skip)
        if failures:
            stack.set_status(f"{prefix}_FAILED", token, f"The following resource(s) failed: {'; '.join(failures)}")
            return False
        if prefix == "UPDATE_ROLLBACK":
            stack.set_status("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", token)
        failures = deployment.remove_made()
        if failures and prefix == "ROLLBACK":
            stack.set_status("ROLLBACK_FAILED", token, f"The following resource(s) failed: {'; '.join(failures)}")
            return False
        stack.outputs, stack.imports = deployment.undo.outputs, deployment.undo.imports
        stack.pending = None
        return True

    def _outputs(self, stack: Stack, configuration: Configuration, resolver: Resolver) -> list[dict[str, Any]]:
        """Evaluate the outputs; exports must be unique, and one that is imported must not change or go."""
        outputs = []
        for name, item in configuration.template.get("Outputs", {}).items():
            if not resolver.includes(item):
                continue
            output = {"OutputKey": name, "OutputValue": _text(resolver.resolve(item["Value"]))}
            if "Description" in item:
                output["Description"] = item["Description"]
            if "Export" in item:
                output["ExportName"] = _text(resolver.resolve(item["Export"]["Name"]))
            outputs.append(output)
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
        """Remove a stack's resources, dependants first, in this thread.

        Args:
            retain: Logical ids of resources that are left alone.
            before: The status that the stack goes back to when the deletion is cancelled.
        """
        for name in stack.exports():
            users = self.importers(name, stack.region)
            if users:
                words = f"Delete canceled. Cannot delete export {name} as it is in use by {' and '.join(users)}."
                stack.set_status(before, token, words)
                return
        doomed = [
            (resource, "Retain" if name in retain else retention(resource, "DeletionPolicy"))
            for name, resource in stack.resources.items()
        ]
        if stack.pending is not None:
            doomed += stack.pending.leftovers()
        failures = remove_all(self.worker(stack, token), doomed)
        if failures:
            names = sorted({failure.split(":", 1)[0] for failure in failures})
            stack.set_status(
                "DELETE_FAILED", token, f"The following resource(s) failed to delete: [{', '.join(names)}]."
            )
            return
        stack.pending = None
        stack.deleted = now()
        stack.set_status("DELETE_COMPLETE", token)

    def close(self) -> None:
        """Let nobody wait for answers any longer, and wait shortly for operations under way."""
        self.mailbox.close()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout=CLOSING_SECONDS / len(threads))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
