"""A Job controller and a kubelet for pods that are processes, against an API server.

Follows, for Indexed Jobs with a pod failure policy (sources, 2026-11):
https://kubernetes.io/docs/concepts/workloads/controllers/job/ and
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
It replaces a failed pod at once: the delay of 10 s, doubled after each failure, is not part of the tests.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
import uuid
from typing import Any

from tests.kubernetes.kubelet import Kubelet, PodProcess

INDEX = "batch.kubernetes.io/job-completion-index"
POLL_SECONDS = 0.1
Manifest = dict[str, Any]


class Api:
    """Requests to an API server in one namespace."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._namespace = url.rstrip("/"), namespace

    def _request(self, method: str, path: str, body: Manifest | None = None) -> Manifest:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(  # noqa: S310 the test's own server
            f"{self._url}/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": kind},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return dict(json.load(answer))

    def _path(self, resource: str) -> str:
        root = "apis/batch/v1" if resource == "jobs" else "api/v1"
        return f"{root}/namespaces/{self._namespace}/{resource}"

    def list(self, resource: str) -> list[Manifest]:
        return list(self._request("GET", self._path(resource))["items"])

    def create(self, resource: str, document: Manifest) -> None:
        self._request("POST", self._path(resource), document)

    def patch(self, resource: str, name: str, change: Manifest) -> None:
        self._request("PATCH", f"{self._path(resource)}/{name}", change)

    def delete(self, resource: str, name: str) -> None:
        self._request("DELETE", f"{self._path(resource)}/{name}")


class JobController(threading.Thread):
    """Creates, ends and replaces pods until the test stops it.

    Attributes:
        error: what ended the thread, for the test to raise.
    """

    def __init__(self, api: Api, kubelet: Kubelet) -> None:
        super().__init__(daemon=True)
        self._api, self._kubelet = api, kubelet
        self._processes: dict[str, PodProcess] = {}
        self._ending: set[str] = set()
        self._stopping = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                self._report_ended_pods()
                for job in self._api.list("jobs"):
                    self._reconcile(job)
            except Exception as error:  # noqa: BLE001 the test raises it
                self.error = error
                return

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def process(self, pod: Manifest) -> PodProcess:
        return self._processes[pod["metadata"]["name"]]

    def evict(self, pod: Manifest) -> None:
        """End a pod as the eviction API does for a drained node: a condition, then SIGTERM."""
        conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
        self._api.patch("pods", pod["metadata"]["name"], {"status": {"conditions": conditions}})
        self._end(pod)

    def _end(self, pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        if name not in self._ending:
            self._ending.add(name)
            self._processes[name].terminate()

    def _report_ended_pods(self) -> None:
        """Write the phase and exit code of pods whose process has ended, as the kubelet does."""
        for pod in self._api.list("pods"):
            code = self.process(pod).process.poll()
            if code is None or _phase(pod) != "Running":
                continue
            # A process ended by signal N has the exit code 128 + N in a container.
            terminated = {"exitCode": code if code >= 0 else 128 - code}
            container = {"name": pod["spec"]["containers"][0]["name"], "state": {"terminated": terminated}}
            phase = "Succeeded" if code == 0 else "Failed"
            self._api.patch(
                "pods", pod["metadata"]["name"], {"status": {"phase": phase, "containerStatuses": [container]}}
            )

    def _reconcile(self, job: Manifest) -> None:
        spec, name = job["spec"], job["metadata"]["name"]
        pods = [pod for pod in self._api.list("pods") if pod["metadata"]["labels"].get("job-name") == name]
        active = [pod for pod in pods if _phase(pod) == "Running"]
        failed = [pod for pod in pods if _phase(pod) == "Failed"]
        done = {_index(pod) for pod in pods if _phase(pod) == "Succeeded"}
        actions = [_action(spec, pod) for pod in failed]
        if job["metadata"].get("deletionTimestamp"):
            self._remove(name, pods, active)
        elif _is_finished(job) or spec.get("suspend"):
            for pod in active:
                self._end(pod)
            if spec.get("suspend"):  # a suspended job has no pods: ended ones are deleted
                for pod in failed:
                    self._api.delete("pods", pod["metadata"]["name"])
        elif "FailJob" in actions:
            self._finish(job, "Failed", "PodFailurePolicy")
        elif actions.count("Count") > spec["backoffLimit"]:
            self._finish(job, "Failed", "BackoffLimitExceeded")
        elif len(done) >= _required_successes(spec):
            self._finish(job, "Complete", "CompletionsReached")
        else:
            # With podReplacementPolicy: Failed, a pod that is still ending is active and is not replaced.
            for index in sorted(set(range(spec["completions"])) - done - {_index(pod) for pod in active}):
                self._create(job, index)

    def _remove(self, name: str, pods: list[Manifest], active: list[Manifest]) -> None:
        for pod in active:
            self._end(pod)
        if not active:
            for pod in pods:
                self._api.delete("pods", pod["metadata"]["name"])
            self._api.patch("jobs", name, {"metadata": {"finalizers": []}})

    def _finish(self, job: Manifest, kind: str, reason: str) -> None:
        condition = {"type": kind, "status": "True", "reason": reason}
        self._api.patch("jobs", job["metadata"]["name"], {"status": {"conditions": [condition]}})

    def _create(self, job: Manifest, index: int) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        process = self._kubelet.start(index)
        metadata = {
            "name": f"{name}-{index}-{uuid.uuid4().hex[:5]}",
            "namespace": job["metadata"]["namespace"],
            "uid": process.uid,
            "labels": {**template["metadata"]["labels"], "job-name": name, INDEX: str(index)},
            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._processes[metadata["name"]] = process
        document = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Running"}}
        self._api.create("pods", {"apiVersion": "v1", "kind": "Pod", **document})


def _phase(pod: Manifest) -> str:
    return str(pod["status"]["phase"])


def _index(pod: Manifest) -> int:
    return int(pod["metadata"]["labels"][INDEX])


def _is_finished(job: Manifest) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _required_successes(spec: Manifest) -> int:
    rules = spec.get("successPolicy", {}).get("rules", [])
    return min((rule["succeededCount"] for rule in rules), default=spec["completions"])


def _action(spec: Manifest, pod: Manifest) -> str:
    """Return the action of the first rule that matches a failed pod. A pod that no rule matches counts as a failure."""
    container = pod["status"]["containerStatuses"][0]
    code = container["state"]["terminated"]["exitCode"]
    conditions = {(each["type"], each["status"]) for each in pod["status"].get("conditions", [])}
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        if (codes := rule.get("onExitCodes")) is not None:
            is_named = codes.get("containerName") in (None, container["name"])
            if is_named and (code in codes["values"]) == (codes["operator"] == "In"):
                return str(rule["action"])
        if any((each["type"], each["status"]) in conditions for each in rule.get("onPodConditions", [])):
            return str(rule["action"])
    return "Count"
