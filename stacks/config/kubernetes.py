"""The `kubernetes` section: how `engine: kubernetes` runs the training in pods on a Kubernetes cluster.

Source of the fields (2026-11): https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stacks.config.setting import Section, setting

NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
BUCKET = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"
LABEL_KEY = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"
GPU_RESOURCE = r"^nvidia\.com/(gpu|gpu\.shared|mig-[1-9]g\.[0-9]{1,3}gb(\.me)?)$"
LabelKey = Annotated[str, Field(pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]
Flavour = Literal["job", "jobset", "trainjob"]
EDIT: Literal["applies to new pods"] = "applies to new pods"


class TolerationConfig(Section):
    """A taint that the pods tolerate."""

    key: LabelKey = setting("Key of the taint, such as `nvidia.com/gpu`.", edit=EDIT)
    operator: Literal["Exists", "Equal"] = setting(
        "`Exists`: tolerate any value of the taint; `Equal`: only `value`.", edit=EDIT, default="Exists"
    )
    value: LabelValue | None = setting("Value of the taint, for `Equal`.", edit=EDIT, default=None)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = setting(
        "Effect of the taint; `null`: all.", edit=EDIT, default=None
    )


class KubernetesConfig(Section):
    """The run's pods in a Kubernetes cluster. Required by `engine: kubernetes`."""

    image: str | None = setting(
        "Image of the pods, with Python, torch, boto3 and s5cmd (docs/kubernetes.md); `null`: the image of the `image` "
        "section.",
        edit=EDIT,
        default=None,
        pattern=r"^[a-z0-9][A-Za-z0-9._:/@-]{0,300}$",
    )
    bucket: str = setting(
        "S3 bucket for checkpoints, results and code, and for the dataset and the control records unless "
        "`dataset_bucket` and `control_bucket` are set.",
        edit=EDIT,
        pattern=BUCKET,
    )
    dataset_bucket: str | None = setting(
        "S3 bucket that contains the dataset under `datasets/`; `null`: `bucket`.",
        edit=EDIT,
        default=None,
        pattern=BUCKET,
    )
    control_bucket: str | None = setting(
        "S3 bucket for the control records, through which the pods elect generations; `null`: `bucket`.",
        edit=EDIT,
        default=None,
        pattern=BUCKET,
    )
    context: str | None = setting(
        "kubectl context that `trainstack up` and the other commands use; `null`: the current context, or "
        "`trainstack-<name>` with an `eks` section.",
        edit="nothing",
        default=None,
        pattern=r"^[A-Za-z0-9_.:/@-]{1,253}$",
    )
    namespace: str = setting("Namespace of all objects; it must exist.", edit=EDIT, default="default", pattern=NAME)
    flavour: Flavour = setting(
        "Kind of job that `trainstack up` creates: an indexed Job, a JobSet, or a TrainJob of Kubeflow Trainer.",
        edit=EDIT,
        default="job",
    )
    service_account: str = setting(
        "Service account of the pods. It needs read and write access to the buckets, by EKS Pod Identity or IRSA.",
        edit=EDIT,
        default="default",
        pattern=NAME,
    )
    role_arn: str | None = setting(
        "IAM role for IRSA: the manifests then contain the service account with this role; `null`: the service account "
        "already exists.",
        edit=EDIT,
        default=None,
        pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$",
    )
    queue: str | None = setting(
        "Kueue LocalQueue that admits all pods at once; `null`: no queue.", edit=EDIT, default=None, pattern=NAME
    )
    priority_class: str | None = setting(
        "Priority class of the pods; `null`: the cluster's default.", edit=EDIT, default=None, pattern=NAME
    )
    runtime_class: str | None = setting(
        "Runtime class of the pods, such as `nvidia`; `null`: the cluster's default.",
        edit=EDIT,
        default=None,
        pattern=NAME,
    )
    image_pull_secrets: list[Annotated[str, Field(pattern=NAME)]] = setting(
        "Secrets that the kubelet uses to pull the image.", edit=EDIT, default=[]
    )
    gpu_resource: str = setting(
        "Resource name of a GPU: `nvidia.com/gpu`, `nvidia.com/gpu.shared` for a time slice, or a MIG device such as "
        "`nvidia.com/mig-1g.10gb`. The device plugin's configuration defines them.",
        edit=EDIT,
        default="nvidia.com/gpu",
        pattern=GPU_RESOURCE,
    )
    gpus: int | None = setting(
        "Number of GPUs per pod; `null`: the number of GPUs of the types in `capacity.instance_types`.",
        edit=EDIT,
        default=None,
        ge=0,
        le=16,
    )
    efa: int | None = setting(
        "Number of EFA adapters per pod (`vpc.amazonaws.com/efa`); `null`: all adapters of the types in "
        "`capacity.instance_types` if `node.fabric` selects EFA, otherwise none.",
        edit=EDIT,
        default=None,
        ge=0,
        le=128,
    )
    cpus: int | None = setting(
        "CPU cores per pod; `null`: no request, for nodes that run no other pods.", edit=EDIT, default=None, ge=1
    )
    memory_gib: int | None = setting(
        "Memory per pod, GiB, including shared memory; `null`: no request.", edit=EDIT, default=None, ge=1
    )
    shared_memory_gib: int = setting(
        "Size limit, GiB, of /dev/shm, which a pod's processes and NCCL use to share data.",
        edit=EDIT,
        default=8,
        ge=1,
    )
    scratch_gib: int = setting(
        "Local disk per pod, GiB, for the dataset and the run directories.", edit=EDIT, default=50, ge=2
    )
    provisioner: Literal["karpenter", "managed_node_group", "none"] = setting(
        "Provisioner of the nodes. It determines the label by which pods select nodes of `capacity.market`. `none`: "
        "the pods do not select a market.",
        edit=EDIT,
        default="none",
    )
    do_not_disrupt: bool = setting(
        "Prevent Karpenter and Cluster Autoscaler from evicting pods to consolidate nodes.", edit=EDIT, default=True
    )
    node_selector: dict[LabelKey, LabelValue] = setting(
        "Labels that nodes must have, in addition to an instance type in `capacity.instance_types`.",
        edit=EDIT,
        default={},
    )
    tolerations: list[TolerationConfig] = setting(
        "Taints that the pods tolerate, in addition to the taint of GPU nodes.", edit=EDIT, default=[], max_length=50
    )
    topology: LabelKey | None = setting(
        "Node label whose value must be the same for all pods, such as `topology.kubernetes.io/zone`; `null`: any "
        "nodes.",
        edit=EDIT,
        default=None,
    )
    save_seconds: float | None = setting(
        "Measured duration of a save, seconds (`save_seconds` in the trainer's metrics); `null`: an estimate from the "
        "model's size.",
        edit=EDIT,
        default=None,
        gt=0,
    )
    termination_grace_seconds: int | None = setting(
        "Seconds between SIGTERM and SIGKILL, for the last save; `null`: twice the duration of a save, but at "
        "least 120.",
        edit=EDIT,
        default=None,
        ge=30,
        le=86400,
    )
    max_failures: int = setting(
        "Maximum number of failed pods; one more fails the job. Disruptions and saves after SIGTERM do not count.",
        edit=EDIT,
        default=6,
        ge=0,
        le=1000,
    )
    keep_finished_hours: int | None = setting(
        "Hours after which the cluster deletes the finished job and its pods; `null`: never.",
        edit=EDIT,
        default=None,
        ge=1,
    )
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = setting(
        "Environment variables of the pods, such as `{NCCL_DEBUG: INFO}`.", edit=EDIT, default={}
    )
