"""What is done to stacks, in the background: deploy a change set, delete, and the statuses on the way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Clients
from localcloud.cloudformation.custom_resource import CustomResources
from localcloud.cloudformation.errors import NoSuchStack, TemplateError
from localcloud.cloudformation.execution import Deployment, remove_all
from localcloud.cloudformation.intrinsics import Resolver
from localcloud.cloudformation.provider import Provider, ResourceFailure
from localcloud.cloudformation.stack import ChangeSet, Stack, now
from localcloud.cloudformation.work import Worker

logger = logging.getLogger(__name__)


class Stacks:
    """All stacks of the account, in all regions, and the operations on them."""

    def __init__(self, clients: Clients, providers: Mapping[str, Provider]) -> None:
        self.clients = clients
        self.providers = providers
        self.custom = CustomResources(clients.endpoint_url)
        self.lock = threading.RLock()
        self._stacks: list[Stack] = []
        self._threads: list[threading.Thread] = []

    def add(self, stack: Stack) -> None:
        """Make a stack known."""
        with self.lock:
            self._stacks.append(stack)

    def remove(self, stack: Stack) -> None:
        """Forget a stack that never came to be."""
        with self.lock:
            self._stacks.remove(stack)

    def all(self, region: str) -> list[Stack]:
        """Return a region's stacks, newest first, deleted ones included."""
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

    def resolver_maker(
        self, region: str, template: Mapping[str, Any], parameters: Mapping[str, Any], imports: set[str]
    ) -> Callable[[Callable[[str], Any], Callable[[str, str], Any]], Resolver]:
        """Return what makes a resolver for a template; used exports are noted in `imports`."""

        def import_value(name: str) -> Any:
            imports.add(name)
            for stack in self.all(region):
                if stack.exists and name in stack.exports():
                    return stack.exports()[name]
            raise TemplateError(f"No export named {name} found.")

        def dynamic(service: str, rest: str) -> str:
            if service != "ssm":
                raise TemplateError(f"{{{{resolve:{service}:...}}}}: only ssm is resolved here")
            return self.read_ssm(rest.rpartition(":")[0] if rest.rpartition(":")[2].isdigit() else rest, region)

        def zones(of: str) -> list[str]:
            answer = self.clients.client("ec2", region=of).describe_availability_zones()
            return sorted(zone["ZoneName"] for zone in answer["AvailabilityZones"])

        def make(ref: Callable[[str], Any], get_att: Callable[[str, str], Any]) -> Resolver:
            return Resolver(
                template,
                parameters,
                ref=ref,
                get_att=get_att,
                import_value=import_value,
                dynamic=dynamic,
                zones=zones,
            )

        return make

    def read_ssm(self, name: str, region: str) -> str:
        """Return a Parameter Store value.

        Raises:
            TemplateError: There is no such parameter.
        """
        ssm = self.clients.client("ssm", region=region)
        try:
            return str(ssm.get_parameter(Name=name)["Parameter"]["Value"])
        except ssm.exceptions.ParameterNotFound:
            raise TemplateError(f"Unable to fetch parameters [{name}] from parameter store for this account.") from None

    def worker(self, stack: Stack, token: str | None) -> Worker:
        """Return what works on a stack's resources."""
        return Worker(stack, self.clients, self.providers, self.custom, token)

    def start(self, act: Callable[[], None], stack: Stack, failed_status: str, token: str | None) -> None:
        """Run an operation in a thread; a fault of the engine fails the stack in words."""

        def run() -> None:
            try:
                act()
            except Exception as error:
                # The top of an operation's thread: nobody else can tell the user.
                logger.exception("operation on %s", stack.name)
                stack.set_status(failed_status, token, f"Internal failure: {error!r}")

        thread = threading.Thread(target=run, name=f"stack {stack.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def deploy(self, stack: Stack, change_set: ChangeSet, token: str | None, *, disable_rollback: bool) -> None:
        """Carry out a change set in this thread."""
        kind = "CREATE" if change_set.kind == "CREATE" else "UPDATE"
        imports: set[str] = set()
        maker = self.resolver_maker(stack.region, change_set.template, change_set.parameters, imports)
        worker = self.worker(stack, token)
        deployment: Deployment | None = None
        try:
            deployment = Deployment(stack, change_set.template, maker, worker)
            deployment.run()
            outputs = self._outputs(stack, change_set.template, deployment.resolver)
        except (ResourceFailure, ApiError) as failure:
            self._failed(stack, kind, deployment, str(failure), token, disable_rollback)
            change_set.execution_status = "EXECUTE_FAILED"
            return
        if kind == "UPDATE":
            stack.set_status("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", token)
        deployment.clean_up()
        with stack.lock:
            stack.template, stack.template_body = change_set.template, change_set.template_body
            stack.raw_parameters, stack.parameters = change_set.raw_parameters, change_set.parameters
            stack.tags, stack.capabilities = change_set.tags, change_set.capabilities
            stack.description = change_set.template.get("Description")
            stack.outputs, stack.imports = outputs, imports
            change_set.execution_status = "EXECUTE_COMPLETE"
            stack.set_status(f"{kind}_COMPLETE", token)

    def _failed(
        self,
        stack: Stack,
        kind: str,
        deployment: Deployment | None,
        reason: str,
        token: str | None,
        disable_rollback: bool,
    ) -> None:
        if disable_rollback:
            stack.set_status(f"{kind}_FAILED", token, reason)
            return
        prefix = "ROLLBACK" if kind == "CREATE" else "UPDATE_ROLLBACK"
        stack.set_status(f"{prefix}_IN_PROGRESS", token, f"The following resource(s) failed: {reason}")
        failures = deployment.roll_back() if deployment is not None else []
        if failures:
            stack.set_status(f"{prefix}_FAILED", token, "; ".join(failures))
            return
        if kind == "UPDATE":
            stack.set_status("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", token)
        stack.set_status(f"{prefix}_COMPLETE", token)

    def _outputs(self, stack: Stack, template: Mapping[str, Any], resolver: Resolver) -> list[dict[str, Any]]:
        """Evaluate the outputs; exports must be unique, and one that is imported must not change or go."""
        outputs = []
        for name, item in template.get("Outputs", {}).items():
            if not resolver.includes(item):
                continue
            output = {"OutputKey": name, "OutputValue": str(resolver.resolve(item["Value"]))}
            if "Description" in item:
                output["Description"] = item["Description"]
            if "Export" in item:
                output["ExportName"] = str(resolver.resolve(item["Export"]["Name"]))
            outputs.append(output)
        new = {o["ExportName"]: o["OutputValue"] for o in outputs if "ExportName" in o}
        for other in self.all(stack.region):
            if other is stack or not other.exists:
                continue
            for name in new.keys() & other.exports().keys():
                raise TemplateError(f"Export with name {name} is already exported by stack {other.name}")
        for name, value in stack.exports().items():
            users = self.importers(name, stack.region)
            if users and new.get(name) != value:
                verb = "updated" if name in new else "deleted"
                raise TemplateError(f"Export {name} cannot be {verb} as it is in use by {' and '.join(users)}")
        return outputs

    def importers(self, export: str, region: str) -> list[str]:
        """Return the names of the stacks that import an export."""
        return [stack.name for stack in self.all(region) if stack.exists and export in stack.imports]

    def delete(self, stack: Stack, token: str | None, retain: set[str]) -> None:
        """Remove a stack's resources, dependants first, in this thread."""
        in_use = {name: users for name in stack.exports() if (users := self.importers(name, stack.region))}
        if in_use:
            name, users = next(iter(in_use.items()))
            reason = f"Export {name} cannot be deleted as it is in use by {' and '.join(users)}"
            stack.set_status("DELETE_FAILED", token, reason)
            return
        doomed = [resource for name, resource in stack.resources.items() if name not in retain]
        failures = remove_all(self.worker(stack, token), doomed, "DeletionPolicy")
        if failures:
            names = sorted({failure.split(":", 1)[0] for failure in failures})
            stack.set_status("DELETE_FAILED", token, f"The following resource(s) failed to delete: {names}.")
            return
        with stack.lock:
            stack.deleted = now()
            stack.set_status("DELETE_COMPLETE", token)

    def close(self) -> None:
        """Wait shortly for operations under way; the cloud that they work on is about to end."""
        for thread in self._threads:
            thread.join(timeout=0.5)
