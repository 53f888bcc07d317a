"""An API server in memory for kubectl and the job controller: `python api_server.py`, with kmock. Prints its address.

It stores objects, lists and watches them by labels and names, and applies manifests. It has no admission, no schemas,
no controllers and no garbage collection. Behaviors that kmock does not have follow
https://kubernetes.io/docs/reference/using-api/server-side-apply/ and
https://kubernetes.io/docs/concepts/architecture/garbage-collection/#foreground-deletion (2026-11).
"""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp.web
import yaml
from kmock import KubernetesEmulator, Payload, Request, Server, action, headers, resource

APPLY = "application/apply-patch+yaml"
KINDS = {
    resource("", "v1", "pods"): "Pod",
    resource("", "v1", "configmaps"): "ConfigMap",
    resource("", "v1", "services"): "Service",
    resource("batch", "v1", "jobs"): "Job",
}
VERBS = {"create", "delete", "get", "list", "patch", "update", "watch"}


class ApiServer(KubernetesEmulator):
    """kmock's emulator with what kubectl and controllers need."""

    def declare(self) -> None:
        """Declare the resources, for kubectl's discovery."""
        for key, kind in KINDS.items():
            self.resources[key] = {
                "kind": kind,
                "singular": kind.lower(),
                "namespaced": True,
                "verbs": VERBS,
                "subresources": {"status"},
            }

        versions = {key.group: _path(key) for key in KINDS}
        self["get /openapi/v3"] << {
            "paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in versions.values()}
        }
        for group, path in versions.items():
            self[f"get /openapi/v3/{path}"] << _validation_support(group)

        self[action.WATCH] << headers({"Content-Type": "application/json"}) << self._serve_watch

    async def _handle(self, request: Request) -> Any:
        if request.resource is None:
            return await super()._handle(request)
        if "sendInitialEvents" in request.params:  # as without the feature WatchList: kubectl lists, then watches
            return aiohttp.web.json_response(
                {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422},
                status=422,
            )
        key = (request.resource, request.namespace, request.name)
        exists = key in self.objects and not self.objects[key].deleted
        if request.action is action.UPDATE and request.headers.get("Content-Type") == APPLY:
            document = yaml.safe_load(request.text)
            if exists:
                self.objects[key].patch(document)
            else:
                now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
                given = {"namespace": request.namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now}
                self.objects[key] = {**document, "metadata": {**document["metadata"], **given, "resourceVersion": "1"}}
            return aiohttp.web.json_response(self.objects[key].raw, status=200 if exists else 201)
        if request.action is action.DELETE and exists and (request.data or {}).get("propagationPolicy") == "Foreground":
            self.objects[key].patch({"metadata": {"finalizers": ["foregroundDeletion"]}})
        return await super()._handle(request)

    async def _serve_version(self, request: Request) -> Payload:
        answer = await super()._serve_version(request)
        answer["groupVersion"] = answer["groupVersion"].lstrip("/")  # kmock 0.8 writes /v1 for the core group
        return answer

    async def _serve_list(self, request: Request) -> Payload:
        answer = await super()._serve_list(request)
        kind = KINDS[request.resource]
        items = [each for each in answer["items"] if _is_selected(each, request.params)]
        version = (
            request.resource.version
            if not request.resource.group
            else f"{request.resource.group}/{request.resource.version}"
        )
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items}

    async def _serve_watch(self, request: Request) -> AsyncIterator[Payload]:
        async for event in super()._serve_watch(request):
            if not isinstance(event, dict) or _is_selected(event["object"], request.params):
                yield event


def _path(key: Any) -> str:
    return f"apis/{key.group}/{key.version}" if key.group else f"api/{key.version}"


def _validation_support(group: str) -> dict[str, Any]:
    """Return an OpenAPI document that promises validation of fields by the server, which kubectl looks for."""
    names = ("fieldValidation", "dryRun")
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
    paths = {}
    for key, kind in KINDS.items():
        if key.group == group:
            kinds = {"group": key.group, "version": key.version, "kind": kind}
            patch = {"parameters": parameters, "x-kubernetes-group-version-kind": kinds, "responses": {}}
            paths[f"/{_path(key)}/namespaces/{{namespace}}/{key.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.37.0"}, "paths": paths}


def _is_selected(item: dict[str, Any], params: dict[str, str]) -> bool:
    """Return whether an object matches a request's equality selectors."""
    labels, metadata = item["metadata"].get("labels", {}), item["metadata"]
    wanted = [each.split("=", 1) for each in params.get("labelSelector", "").split(",") if each]
    fields = [each.split("=", 1) for each in params.get("fieldSelector", "").split(",") if each]
    return all(labels.get(key) == value for key, value in wanted) and all(
        metadata[key.removeprefix("metadata.")] == value for key, value in fields
    )


async def main() -> None:
    async with ApiServer() as handler, Server(handler) as server:
        handler.declare()
        print(server.url, flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
