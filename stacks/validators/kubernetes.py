"""Rules for the kubernetes section."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from stacks.capacity.catalogue import catalogue
from stacks.capacity.plan import efa_adapters, fabric, gpus, known_types, processes_per_node
from stacks.capacity.saving import REPORT_SECONDS, grace_seconds, save_seconds
from stacks.config import DeploymentConfig
from stacks.config.kubernetes import KubernetesConfig
from stacks.errors import Problem
from stacks.validators.image import uses_image
from stacks.validators.unused import USED_BY_STACKS, unused_keys

USED = (
    *("name", "engine", "kubernetes", "image", "training", "region", "limits.run_hours"),
    *("capacity.nodes", "capacity.min_nodes", "capacity.instance_types", "capacity.auto", "capacity.market"),
    *("capacity.gang_timeout_seconds", "node.python.interpreter", "node.python.packages", "node.fabric"),
    *("node.supervise", "node.boot_timeout_seconds"),
)
"""Keys that have an effect with `engine: kubernetes`, including all keys below them."""
SHARED = "nvidia.com/gpu.shared"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
"""Source (2026-11): https://kubernetes.io/docs/reference/labels-annotations-taints/"""
MARKET_LABELS = {
    "karpenter": ("karpenter.sh/capacity-type", {"spot": "spot", "on_demand": "on-demand", "reserved": "reserved"}),
    "managed_node_group": ("eks.amazonaws.com/capacityType", {"spot": "SPOT", "on_demand": "ON_DEMAND"}),
}
"""Node labels of the provisioners, and their values by market. Sources (2026-11):
https://karpenter.sh/docs/concepts/scheduling/ and
https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html"""
SPOT_NOTICE_SECONDS = 120
"""Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
RESERVED_VARIABLES = ("TRAINSTACK_", "AWS_", "JOB_COMPLETION_INDEX", "PYTHONPATH")

SectionRule = Callable[[DeploymentConfig, KubernetesConfig], Iterator[Problem]]


def section_of_fleet(config: DeploymentConfig) -> Iterator[Problem]:
    """Other engines do not use the section."""
    if config.kubernetes is not None and not config.runs_pods:
        remedy = "set engine: kubernetes, or remove the section"
        yield Problem("kubernetes", "set", f"has no effect with engine: {config.engine}", remedy, "warning")


def _when_used(rule: SectionRule) -> Callable[[DeploymentConfig], Iterator[Problem]]:
    """Return a rule that does nothing for other engines or without the section."""

    @functools.wraps(rule)
    def checked(config: DeploymentConfig) -> Iterator[Problem]:
        if config.runs_pods and config.kubernetes is not None:
            yield from rule(config, config.kubernetes)

    return checked


def has_section(config: DeploymentConfig) -> Iterator[Problem]:
    """The engine needs its section."""
    if config.runs_pods and config.kubernetes is None:
        rule = f"is missing, but engine is {config.engine}"
        yield Problem("kubernetes", None, rule, "set kubernetes.bucket and an image, or engine: fleet")


def types_are_known(config: DeploymentConfig, _: KubernetesConfig) -> Iterator[Problem]:
    """The instance types, which determine the GPUs and adapters, are in the catalogue."""
    for index, name in enumerate(config.capacity.instance_types):
        if name not in catalogue().types:
            remedy = "list a type that `python -m stacks catalogue` prints, or set kubernetes.gpus and node_selector"
            yield Problem(f"capacity.instance_types.{index}", name, "is not in the catalogue", remedy)


def gpu_request(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """A pod requests at most the GPUs of its node, and shares GPUs only in ways that NCCL supports."""
    count, resource = gpus(config), section.gpu_resource
    offered = min((one.gpus for one in known_types(config)), default=None)
    if offered is not None and resource == "nvidia.com/gpu" and count > offered:
        rule = f"must be at most {offered}, the number of GPUs of a node in capacity.instance_types"
        yield Problem("kubernetes.gpus", count, rule, "lower it, or list larger types; the pods would stay pending")
    if not count and resource != "nvidia.com/gpu":
        rule = "is set, but the pods request no GPU"
        yield Problem("kubernetes.gpu_resource", resource, rule, "set kubernetes.gpus: 1, or remove it")
    if resource == "nvidia.com/gpu":
        return
    if count > 1:
        rule = f"must be 1 with {resource}: NCCL does not treat several slices or MIG devices as several GPUs"
        yield Problem("kubernetes.gpus", count, rule, "set 1, or use nvidia.com/gpu")
    if config.capacity.nodes > 1 and count:
        rule = f"pods with {resource} may share one GPU, and NCCL rejects two ranks on one GPU"
        remedy = "set capacity.nodes: 1, or use nvidia.com/gpu"
        yield Problem("kubernetes.gpu_resource", resource, rule, remedy)
    if processes_per_node(config) > 1:
        rule = f"must be 1 with {resource}"
        yield Problem("training.processes_per_node", processes_per_node(config), rule, "remove it")


def gpus_known(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """The pods request GPUs if the trainer needs them."""
    if section.gpus is None and not gpus(config):
        rule = "is not set, and capacity.instance_types lists no type with GPUs, so the pods request no GPU"
        yield Problem("kubernetes.gpus", None, rule, "set it, unless the run trains on CPUs", "warning")


def adapters(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """The pods request EFA adapters if and only if NCCL must use them."""
    count = efa_adapters(config)
    if fabric(config) == "efa" and not count:
        rule = "is 0, but node.fabric selects EFA, and NCCL would fail without adapters"
        yield Problem("kubernetes.efa", count, rule, "set the number of adapters per pod, or node.fabric: tcp")
    if fabric(config) == "tcp" and section.efa:
        rule = "reserves adapters that NCCL does not use, because the network between nodes is TCP"
        yield Problem("kubernetes.efa", section.efa, rule, "set node.fabric: efa, or remove it")
    offered = min((one.efa_interfaces for one in known_types(config)), default=None)
    if section.efa and offered is not None and section.efa > offered:
        rule = f"must be at most {offered}, the number of adapters of a node in capacity.instance_types"
        yield Problem("kubernetes.efa", section.efa, rule, "lower it; the pods would stay pending")


def sizes(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """Shared memory is part of the pod's memory, and a request fits on a node."""
    if section.memory_gib is not None and section.shared_memory_gib >= section.memory_gib:
        rule = f"must be less than memory_gib, {section.memory_gib}: it is part of the pod's memory"
        yield Problem("kubernetes.shared_memory_gib", section.shared_memory_gib, rule, "lower it, or raise memory_gib")
    for name, value, offered in (
        ("cpus", section.cpus, min((one.vcpus for one in known_types(config)), default=None)),
        ("memory_gib", section.memory_gib, min((one.memory_gib for one in known_types(config)), default=None)),
    ):
        if value is not None and offered is not None and value >= offered:
            rule = f"must be less than {offered}, because the node's own services need a share of that amount"
            yield Problem(f"kubernetes.{name}", value, rule, "lower it; the pods would stay pending")


def grace_period(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """A save fits within the grace period, and the grace period within the notice of a Spot Instance."""
    grace, save = grace_seconds(config), save_seconds(config)
    source = "measured" if section.save_seconds is not None else "estimated"
    if section.termination_grace_seconds is not None and grace < save + REPORT_SECONDS:
        rule = f"is shorter than a save ({source}: {save:.0f} s) plus the last records ({REPORT_SECONDS:.0f} s)"
        remedy = f"set at least {round(save + REPORT_SECONDS + 0.5)}, or remove it"
        yield Problem("kubernetes.termination_grace_seconds", grace, rule, remedy)
    if _is_spot(config, section) and save + REPORT_SECONDS > SPOT_NOTICE_SECONDS:
        rule = f"a save ({source}: {save:.0f} s) does not fit into the two-minute notice of a Spot Instance"
        remedy = "a reclaimed node loses the steps since the last checkpoint: use more nodes, or market: on_demand"
        yield Problem("capacity.market", "spot", rule, remedy, "warning")


def _is_spot(config: DeploymentConfig, section: KubernetesConfig) -> bool:
    return config.capacity.market == "spot" and section.provisioner != "none"


def gang(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """All pods of a gang get nodes, and an autoscaler does not remove these nodes."""
    nodes = config.capacity.nodes
    is_rigid = nodes > 1 and (config.capacity.min_nodes or nodes) == nodes
    if not section.do_not_disrupt and is_rigid:
        rule = f"lets the autoscaler evict single pods; each eviction makes all {nodes} nodes of the gang save and wait"
        yield Problem("kubernetes.do_not_disrupt", False, rule, "remove it, or set capacity.min_nodes")
    if nodes > 1 and section.queue is None:
        rule = "is not set: the scheduler starts pods one by one, and two gangs can wait for each other's nodes"
        yield Problem("kubernetes.queue", None, rule, "set a Kueue LocalQueue, unless this is the only gang", "warning")
    if section.queue is not None and section.flavour != "job" and (config.capacity.min_nodes or nodes) < nodes:
        rule = f"Kueue admits a {section.flavour} only with all its {nodes} pods"
        remedy = "set kubernetes.flavour: job, for which Kueue can admit fewer pods"
        yield Problem("capacity.min_nodes", config.capacity.min_nodes, rule, remedy, "warning")


def market(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """The provisioner supports the market."""
    capacity = config.capacity
    if config.engine == "hyperpod":
        if section.provisioner != "none":
            rule = "does not launch nodes: HyperPod's instance group has a fixed number of them"
            yield Problem("kubernetes.provisioner", section.provisioner, rule, "remove it")
        return
    if section.provisioner == "none":
        if "market" in capacity.model_fields_set:
            rule = "has no effect, because kubernetes.provisioner is none"
            remedy = "set provisioner: karpenter or managed_node_group, or use node_selector"
            yield Problem("capacity.market", capacity.market, rule, remedy)
        return
    label, values = MARKET_LABELS[section.provisioner]
    if capacity.market not in values:
        rule = f"is not supported by provisioner {section.provisioner}"
        yield Problem("capacity.market", capacity.market, rule, f"set {' or '.join(values)}")
    if label in section.node_selector:
        rule = "is set by kubernetes.provisioner and capacity.market"
        yield Problem(f"kubernetes.node_selector.{label}", section.node_selector[label], rule, "remove it")


def placement(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """No two keys select nodes by the same label, and each toleration is valid."""
    if INSTANCE_TYPE_LABEL in section.node_selector and config.capacity.instance_types:
        rule = "is set by capacity.instance_types"
        value = section.node_selector[INSTANCE_TYPE_LABEL]
        yield Problem(f"kubernetes.node_selector.{INSTANCE_TYPE_LABEL}", value, rule, "remove one of them")
    if section.topology == "kubernetes.io/hostname" and config.capacity.nodes > 1:
        rule = "puts all pods of the gang on one node"
        yield Problem("kubernetes.topology", section.topology, rule, "use a zone, block or rack label")
    for index, each in enumerate(section.tolerations):
        path = f"kubernetes.tolerations.{index}.value"
        if each.operator == "Exists" and each.value is not None:
            yield Problem(path, each.value, "applies only to operator: Equal", "set Equal, or remove the value")
        if each.operator == "Equal" and each.value is None:
            yield Problem(path, None, "is missing for operator: Equal", "set it, or set Exists")


def identity(config: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """The role applies to the run's own service account."""
    if section.role_arn is not None and section.service_account == "default":
        rule = "would give the role to every pod in the namespace"
        yield Problem("kubernetes.service_account", "default", rule, "use a separate service account for the run")


def variables(_: DeploymentConfig, section: KubernetesConfig) -> Iterator[Problem]:
    """The environment does not replace variables of the node program."""
    for name, value in section.environment.items():
        if name.startswith(RESERVED_VARIABLES) and not name.startswith("AWS_ENDPOINT_URL"):
            rule = "is set by the manifests, EKS or the node program"
            yield Problem(f"kubernetes.environment.{name}", value, rule, "remove it")


def limits(config: DeploymentConfig, _: KubernetesConfig) -> Iterator[Problem]:
    """Cost limits are not silently ignored."""
    for path, value in (
        ("limits.usd", config.limits.usd),
        ("limits.deadline_hours", config.limits.deadline_hours),
        ("budget.monthly_usd", config.budget.monthly_usd),
    ):
        if value is not None:
            remedy = "set a quota for the queue in Kueue, set limits.run_hours, and remove this key"
            yield Problem(path, value, f"is not enforced with engine: {config.engine}", remedy)


def dependencies(config: DeploymentConfig, _: KubernetesConfig) -> Iterator[Problem]:
    """Packages are part of the image."""
    listed = config.training.dependencies
    if isinstance(listed, list) and listed and not uses_image(config):
        rule = f"are not installed with engine: {config.engine}"
        yield Problem(
            "training.dependencies",
            ", ".join(listed),
            rule,
            "install them in kubernetes.image, or add the section image",
        )


def keys_without_effect(config: DeploymentConfig) -> Iterator[Problem]:
    """Keys that the engine does not use are reported."""
    if not config.runs_pods:
        return
    has_stacks = config.engine == "hyperpod" or config.has_eks_stack
    for path in unused_keys(config, (*USED, *USED_BY_STACKS, "hyperpod", "eks") if has_stacks else USED):
        rule = f"has no effect with engine: {config.engine}"
        yield Problem(path, "set", rule, "remove it, unless the file also describes a fleet", "warning")


_SECTION_RULES: tuple[SectionRule, ...] = (
    *(types_are_known, gpu_request, gpus_known, adapters, sizes, grace_period, gang, market, placement, identity),
    *(variables, limits, dependencies),
)
RULES = (has_section, *map(_when_used, _SECTION_RULES), keys_without_effect)
OTHER_ENGINES_RULES = (section_of_fleet,)
