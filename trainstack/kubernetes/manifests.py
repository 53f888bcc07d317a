"""The manifests of a run: documents, service, service account, and the job in one of three flavours.

Sources (2026-11): https://kubernetes.io/docs/concepts/workloads/controllers/job/,
https://jobset.sigs.k8s.io/docs/concepts/, https://www.kubeflow.org/docs/components/trainer/ and
https://kueue.sigs.k8s.io/docs/tasks/run/jobs/
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import yaml

from bootstrap.kubernetes import exit_codes
from bootstrap.kubernetes.pod import NODE_FILE, RUN_FILE
from stacks.config.kubernetes import Flavour
from trainstack.kubernetes.node_pool import node_manifests
from trainstack.kubernetes.plan import Plan
from trainstack.kubernetes.pod_template import CONTAINER, labels, pod_template

KINDS: dict[Flavour, str] = {"job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}
DIGEST = "trainstack/digest"
"""Annotation with the digest of the job. Jobs cannot be changed, so a job with a different digest must be replaced."""
QUEUE = "kueue.x-k8s.io/queue-name"
TRAINER_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""Label of the replicated job to which Kubeflow Trainer applies the TrainJob's `trainer` section. Source (2026-11):
https://www.kubeflow.org/docs/components/trainer/operator-guides/job-template/"""
Manifest = dict[str, Any]


def manifests(plan: Plan, flavour: Flavour, queue: str | None) -> list[Manifest]:
    """Return the manifests in the order of their creation. The job is the last one."""
    found = [_documents(plan)]
    if plan.section.role_arn is not None:
        found.append(_service_account(plan, plan.section.role_arn))
    if flavour == "job":  # the JobSet controller creates the service of the other flavours
        found.append(_service(plan))
    if flavour == "trainjob":
        found.append(_runtime(plan, queue))
    job = {"job": _job, "jobset": _jobset, "trainjob": _trainjob}[flavour](plan, queue)
    digest = hashlib.sha256(json.dumps([job, *found[1:]], sort_keys=True).encode()).hexdigest()
    job["metadata"].setdefault("annotations", {})[DIGEST] = digest
    return [*node_manifests(plan), *found, job]


class _Dumper(yaml.SafeDumper):
    """Writes multi-line strings as blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def manifest_text(documents: list[Manifest]) -> str:
    """Return manifests as YAML for `kubectl apply -f -`."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)


def _metadata(plan: Plan, **more: Any) -> Manifest:
    return {"name": plan.name, "namespace": plan.section.namespace, "labels": labels(plan), **more}


def _job_metadata(plan: Plan, queue: str | None) -> Manifest:
    metadata = _metadata(plan)
    if queue is not None:
        metadata["labels"] = {**labels(plan), QUEUE: queue}
    return metadata


def _documents(plan: Plan) -> Manifest:
    texts = {NODE_FILE: plan.node.to_json(), RUN_FILE: plan.run.to_json()}
    data = {name: json.dumps(value, indent=2, sort_keys=True) + "\n" for name, value in texts.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(plan), "data": data}


def _service_account(plan: Plan, role_arn: str) -> Manifest:
    metadata = _metadata(plan, annotations={"eks.amazonaws.com/role-arn": role_arn})
    metadata["name"] = plan.section.service_account
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def _service(plan: Plan) -> Manifest:
    """Return the headless service, which gives each pod a name: <job>-<index>.<service>."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels(plan)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(plan), "spec": spec}


def _job_spec(plan: Plan, queue: str | None) -> Manifest:
    nodes, hours = plan.run.nodes, plan.config.limits.run_hours
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": plan.section.max_failures,
        "podReplacementPolicy": "Failed",  # the only policy together with a pod failure policy
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": _codes(exit_codes.FAIL_JOB)},
                {"action": "Ignore", "onExitCodes": _codes(exit_codes.IGNORE)},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": pod_template(plan, queue),
    }
    if plan.run.min_nodes < nodes:
        # A pod exits with 0 only after the run has finished, so a pod that still waits for a node is not needed.
        spec["successPolicy"] = {"rules": [{"succeededCount": 1}]}
    if hours is not None:
        spec["activeDeadlineSeconds"] = max(1, round(hours * 3600))
    return spec


def _codes(values: tuple[int, ...]) -> Manifest:
    return {"containerName": CONTAINER, "operator": "In", "values": sorted(values)}


def _ttl(plan: Plan) -> Manifest:
    hours = plan.section.keep_finished_hours
    return {} if hours is None else {"ttlSecondsAfterFinished": hours * 3600}


def _job(plan: Plan, queue: str | None) -> Manifest:
    metadata = _job_metadata(plan, queue)
    if queue is not None and plan.run.min_nodes < plan.run.nodes:
        metadata["annotations"] = {
            "kueue.x-k8s.io/job-min-parallelism": str(plan.run.min_nodes),
            "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
        }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {**_job_spec(plan, queue), **_ttl(plan)},
    }


def _jobset_spec(plan: Plan, queue: str | None, job_labels: dict[str, str]) -> Manifest:
    spec = _job_spec(plan, queue)
    spec["template"]["spec"].pop("subdomain")  # the JobSet controller sets it
    template: Manifest = {"spec": spec}
    if job_labels:
        template["metadata"] = {"labels": job_labels}
    return {
        "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": template}],
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": plan.name},
        "failurePolicy": {"maxRestarts": 0},  # the supervisors restart the gang, and the job replaces its pods
    }


def _jobset(plan: Plan, queue: str | None) -> Manifest:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _job_metadata(plan, queue),
        "spec": {**_jobset_spec(plan, queue, {}), **_ttl(plan)},
    }


def _runtime(plan: Plan, queue: str | None) -> Manifest:
    """Return the runtime that the TrainJob refers to: a TrainJob itself cannot contain a pod failure policy."""
    jobset = {**_jobset_spec(plan, queue, TRAINER_STEP), **_ttl(plan)}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": _metadata(plan),
        "spec": {"mlPolicy": {"numNodes": plan.run.nodes}, "template": {"spec": jobset}},
    }


def _trainjob(plan: Plan, queue: str | None) -> Manifest:
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": plan.name}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _job_metadata(plan, queue),
        "spec": {"runtimeRef": reference, "trainer": {"numNodes": plan.run.nodes}},
    }
