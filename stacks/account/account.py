"""The account that a preflight checks, with the deployment, its templates, and the deployed resources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from stacks.config import DeploymentConfig

ClientOf = Callable[[str], Any]
"""Creates the boto3 client for a service."""
Templates = Mapping[str, Mapping[str, Any]]
"""Templates, keyed by construct id, such as `TrainingStack`."""


@dataclass
class Account:
    """Caches the responses to calls that several checks need. The methods are thread-safe."""

    config: DeploymentConfig
    clients: ClientOf
    synthesise: Callable[[], Templates]
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _templates: Templates | None = None
    _deployed: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        """Return a client. Threads can share boto3 clients, but creating clients concurrently is not safe."""
        with self._lock:
            return self.clients(service)

    @property
    def templates(self) -> Templates:
        """The deployment's templates.

        Raises:
            ConfigError: The synthesis failed.
        """
        with self._lock:
            if self._templates is None:
                self._templates = self.synthesise()
            return self._templates

    def deployed(self, stack: str) -> Mapping[str, str]:
        """Return the physical ids of a stack's resources by logical id, or an empty mapping before the first deploy."""
        with self._lock:
            if stack not in self._deployed:
                self._deployed[stack] = _physical(self.clients, f"{self.config.name}-{stack}")
            return self._deployed[stack]

    def new_resources(self, resource_type: str) -> Iterator[Mapping[str, Any]]:
        """Yield the properties of all resources of a type that are in the templates but not deployed yet."""
        for stack, template in self.templates.items():
            for name, resource in template["Resources"].items():
                if resource["Type"] == resource_type and name not in self.deployed(stack):
                    yield resource.get("Properties", {})


def _physical(clients: ClientOf, stack: str) -> dict[str, str]:
    try:
        answer = clients("cloudformation").describe_stack_resources(StackName=stack)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":  # no such stack
            return {}
        raise
    return {
        one["LogicalResourceId"]: one["PhysicalResourceId"]
        for one in answer["StackResources"]
        if one.get("PhysicalResourceId")
    }
