"""The pod template that all flavours of a job share.

Sources (2026-11): https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/,
https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html (adapters and huge pages),
https://karpenter.sh/docs/concepts/disruption/ and
https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md (annotations),
https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling/
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bootstrap.kubernetes import pod
from stacks.capacity.plan import efa_adapters, gpus
from stacks.capacity.saving import grace_seconds
from stacks.validators.kubernetes import INSTANCE_TYPE_LABEL, MARKET_LABELS
from trainstack.kubernetes.plan import Plan

CONTAINER = "node"
"""Name of the container. Kubeflow Trainer uses this name for the trainer's container."""
ROOT = "/opt/trainstack"
HUGE_PAGES_MIB = 5120
"""Huge pages of 2 MiB per pod, as in AWS's NCCL test. Nodes with the EFA driver preallocate 5,128 pages (10,256 MiB).
Source (2026-11): https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html"""
SHIM = (Path(__file__).parent / "shim.txt").read_text(encoding="utf-8")
_DOWNWARD = {pod.NAME: "metadata.name", pod.UID: "metadata.uid", pod.ADDRESS: "status.podIP"}


def pod_template(plan: Plan, queue: str | None) -> dict[str, Any]:
    """Return the pod template of a run. `queue`: Kueue's queue, or None."""
    annotations = _annotations(plan, queue)
    return {
        "metadata": {"labels": labels(plan), **({"annotations": annotations} if annotations else {})},
        "spec": _pod(plan, queue),
    }


def labels(plan: Plan) -> dict[str, str]:
    """Return the labels of all objects of a run."""
    return {"app.kubernetes.io/name": "trainstack", "app.kubernetes.io/instance": plan.config.name}


def _annotations(plan: Plan, queue: str | None) -> dict[str, str]:
    found = {}
    if plan.section.do_not_disrupt:
        found["karpenter.sh/do-not-disrupt"] = "true"
        found["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"
    if plan.section.topology is not None and queue is not None:
        found["kueue.x-k8s.io/podset-required-topology"] = plan.section.topology
    return found


def _pod(plan: Plan, queue: str | None) -> dict[str, Any]:
    section = plan.section
    found: dict[str, Any] = {
        "restartPolicy": "Never",  # required by a pod failure policy
        "serviceAccountName": section.service_account,
        "subdomain": plan.name,
        # The pause container then reaps processes whose parent has exited, such as data loaders of a killed trainer.
        "shareProcessNamespace": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(plan.config),
        "containers": [_container(plan)],
        "volumes": [
            {"name": "documents", "configMap": {"name": plan.name}},
            {"name": "scratch", "emptyDir": {"sizeLimit": f"{section.scratch_gib}Gi"}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{section.shared_memory_gib}Gi"}},
        ],
    }
    if selector := _node_selector(plan):
        found["nodeSelector"] = selector
    if affinity := _affinity(plan, queue):
        found["affinity"] = affinity
    if tolerations := _tolerations(plan):
        found["tolerations"] = tolerations
    if section.priority_class is not None:
        found["priorityClassName"] = section.priority_class
    if section.runtime_class is not None:
        found["runtimeClassName"] = section.runtime_class
    if section.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in section.image_pull_secrets]
    return found


def _container(plan: Plan) -> dict[str, Any]:
    section, bundle, types = plan.section, plan.node.bundle, plan.config.capacity.instance_types
    variables = {
        "TRAINSTACK_ROOT": ROOT,
        pod.GRACE: str(grace_seconds(plan.config)),
        pod.INSTANCE_TYPE: types[0] if len(types) == 1 else "",
        pod.MARKET: _market(plan),
        "AWS_REGION": plan.config.region,
        "AWS_DEFAULT_REGION": plan.config.region,
        **section.environment,
    }
    return {
        "name": CONTAINER,
        "image": section.image,
        "command": [plan.config.node.python.interpreter, "-c", SHIM, bundle.bucket, bundle.key, bundle.sha256],
        "env": [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _DOWNWARD.items()),
            *({"name": name, "value": value} for name, value in variables.items()),
        ],
        "resources": _resources(plan),
        "volumeMounts": [
            {"name": "documents", "mountPath": str(pod.DOCUMENTS), "readOnly": True},
            {"name": "scratch", "mountPath": ROOT},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 mount point of POSIX shared memory
        ],
    }


def _market(plan: Plan) -> str:
    """Return the market of the node, as the instance metadata service names it."""
    is_known = plan.section.provisioner != "none" or plan.config.engine == "hyperpod"
    return "spot" if plan.config.capacity.market == "spot" and is_known else "on-demand"


def _resources(plan: Plan) -> dict[str, Any]:
    """Return requests and limits. For extended resources and huge pages, they must be equal, and the limit is the
    default request.

    Source (2026-11): https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/ and
    https://kubernetes.io/docs/tasks/manage-hugepages/scheduling-hugepages/
    """
    section = plan.section
    requests = {"ephemeral-storage": f"{section.scratch_gib}Gi"}
    limits: dict[str, str] = {}
    if section.cpus is not None:
        requests["cpu"] = str(section.cpus)
    if section.memory_gib is not None:
        requests["memory"] = limits["memory"] = f"{section.memory_gib}Gi"
    if count := gpus(plan.config):
        limits[section.gpu_resource] = str(count)
    if count := efa_adapters(plan.config):
        limits["vpc.amazonaws.com/efa"] = str(count)
        limits["hugepages-2Mi"] = f"{HUGE_PAGES_MIB}Mi"
        if section.cpus is None and section.memory_gib is None:
            requests["memory"] = "1Gi"  # huge pages require a request of memory or cores
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _node_selector(plan: Plan) -> dict[str, str]:
    found = dict(plan.section.node_selector)
    if plan.section.provisioner != "none":
        label, values = MARKET_LABELS[plan.section.provisioner]
        found[label] = values[plan.config.capacity.market]
    return found


def _affinity(plan: Plan, queue: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # HyperPod's nodes have SageMaker's names of the types. Source (2026-11):
    # https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
    prefix = "ml." if plan.config.engine == "hyperpod" else ""
    if types := [f"{prefix}{name}" for name in plan.config.capacity.instance_types]:
        expression = {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": types}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if plan.section.topology is not None and queue is None:  # with a queue, Kueue assigns the topology
        term = {"labelSelector": {"matchLabels": labels(plan)}, "topologyKey": plan.section.topology}
        found["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return found


def _tolerations(plan: Plan) -> list[dict[str, str]]:
    found = []
    if gpus(plan.config):
        found.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    for each in plan.section.tolerations:
        found.append({name: value for name, value in each.model_dump().items() if value is not None})
    return found
