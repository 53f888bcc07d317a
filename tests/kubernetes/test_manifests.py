"""Tests of manifests: the effect of each key, the structure of each flavour, and rules that are not in the schemas."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.kubernetes import exit_codes
from bootstrap.kubernetes.pod import REPORT_SECONDS
from stacks.capacity import saving
from stacks.config.kubernetes import Flavour, KubernetesConfig
from stacks.config.reference import fields
from stacks.loading import load
from stacks.validators import warnings
from training.process.outcome import EXIT_CODES
from trainstack.commands import main
from trainstack.kubernetes.command import read_plan
from trainstack.kubernetes.kubectl import Cluster
from trainstack.kubernetes.manifests import manifest_text, manifests

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "kubernetes-venv" / "bin" / "python"
VERSIONS = ("1.33", "1.35", "1.37")
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)
SECTION: dict[str, Any] = {
    "image": "repository/trainer:1",
    "bucket": "my-bucket",
    "provisioner": "karpenter",
    "service_account": "trainer",
}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(section: dict[str, Any] | None = None, **sections: Any) -> Path:
        document = {
            "name": "x",
            "engine": "kubernetes",
            "kubernetes": {**SECTION, **(section or {})},
            "capacity": {"instance_types": ["g6.12xlarge"], "nodes": 2},
            "training": {"dataset": "text", "config": {"steps": 10, "global_batch_size": 8}},
            **sections,
        }
        path = tmp_path / "x.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return file


def made(file: Path, flavour: Flavour = "job", queue: str | None = None) -> list[dict[str, Any]]:
    plan = read_plan(file)
    return manifests(plan, flavour, queue or plan.section.queue)


def job_spec(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the specification of the Job in any flavour."""
    found = {each["kind"]: each for each in documents}
    if "Job" in found:
        return dict(found["Job"]["spec"])
    owner = found["JobSet"]["spec"] if "JobSet" in found else found["TrainingRuntime"]["spec"]["template"]["spec"]
    return dict(owner["replicatedJobs"][0]["template"]["spec"])


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


EDITS: dict[str, Any] = {
    "image": "other:2",
    "bucket": "other-bucket",
    "dataset_bucket": "datasets",
    "control_bucket": "records",
    "namespace": "team",
    "service_account": "other",
    "role_arn": "arn:aws:iam::123456789012:role/trainer",
    "queue": "gpus",
    "priority_class": "high",
    "runtime_class": "nvidia",
    "image_pull_secrets": ["registry"],
    "gpu_resource": None,  # test_a_shared_gpu
    "gpus": 2,
    "efa": None,  # test_adapters
    "cpus": 8,
    "memory_gib": 64,
    "shared_memory_gib": 16,
    "scratch_gib": 99,
    "provisioner": "managed_node_group",
    "do_not_disrupt": None,  # test_disruption
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoExecute"}],
    "topology": "topology.kubernetes.io/zone",
    "save_seconds": 500.0,
    "termination_grace_seconds": 600,
    "max_failures": 9,
    "keep_finished_hours": 2,
    "environment": {"NCCL_DEBUG": "INFO"},
    "flavour": None,  # test_flavour_of_the_file
    "context": None,  # an argument of kubectl
}


def test_the_table_of_edits_is_complete() -> None:
    names = {path.partition(".")[0] for path, _, _ in fields(KubernetesConfig)}
    assert names | {"tolerations"} == set(EDITS)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("key", [key for key, value in EDITS.items() if value is not None])
def test_each_key_changes_the_manifests(write: Write, key: str, flavour: Flavour) -> None:
    before = made(write(), flavour)
    after = made(write({key: EDITS[key]}), flavour)
    assert before != after
    value = EDITS[key]
    if isinstance(value, str) and key != "provisioner":
        assert value in manifest_text(after)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_pods_fail_as_the_node_program_says(write: Write, flavour: Flavour) -> None:
    documents = made(write(), flavour)
    spec = job_spec(documents)
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert spec["template"]["spec"]["restartPolicy"] == "Never" and spec["podReplacementPolicy"] == "Failed"
    container = spec["template"]["spec"]["containers"][0]["name"]
    fail, ignore, disrupted = spec["podFailurePolicy"]["rules"]
    assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [70, 76, 78])
    assert (ignore["action"], ignore["onExitCodes"]["values"]) == ("Ignore", [75, 143])
    assert {fail["onExitCodes"]["containerName"], ignore["onExitCodes"]["containerName"]} == {container}
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert not {0} & {*fail["onExitCodes"]["values"], *ignore["onExitCodes"]["values"]}, "the API rejects 0"
    assert [each["kind"] for each in documents][-1] == {"job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}[
        flavour
    ]


def test_exit_codes_mean_the_same_as_those_of_a_trainer() -> None:
    assert EXIT_CODES["stopped"] == exit_codes.LEFT
    assert EXIT_CODES["superseded"] == exit_codes.SUPERSEDED
    assert EXIT_CODES["bad_configuration"] == exit_codes.BAD_CONFIGURATION
    assert saving.REPORT_SECONDS == REPORT_SECONDS


def test_the_documents_are_those_that_the_node_program_reads(write: Write) -> None:
    documents = made(write({"control_bucket": "records", "gpus": 4}, capacity={"nodes": 2, "min_nodes": 1}))
    data = documents[0]["data"]
    node, run = NodeDocument.from_text(data["node.json"]), RunDocument.from_text(data["run.json"])
    assert (node.checkpoint_bucket, node.dataset_bucket, node.control_bucket) == ("my-bucket", "my-bucket", "records")
    assert (node.gpus, run.nodes, run.min_nodes, run.processes_per_node) == (4, 2, 1, 4)
    started = job_spec(documents)["template"]["spec"]["containers"][0]["command"]
    assert started[3:] == [node.bundle.bucket, node.bundle.key, node.bundle.sha256]


def test_a_run_of_fewer_nodes_does_not_wait_for_pods_without_a_node(write: Write) -> None:
    assert "successPolicy" not in job_spec(made(write()))
    file = write(capacity={"instance_types": ["g6.12xlarge"], "nodes": 2, "min_nodes": 1})
    assert job_spec(made(file))["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    annotations = made(file, queue="gpus")[-1]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/job-min-parallelism"] == "1"


def test_disruption(write: Write) -> None:
    capacity = {"instance_types": ["g6.12xlarge"], "nodes": 2, "min_nodes": 1}
    key = "karpenter.sh/do-not-disrupt"
    template = job_spec(made(write(capacity=capacity)))["template"]
    assert template["metadata"]["annotations"][key] == "true"
    template = job_spec(made(write({"do_not_disrupt": False}, capacity=capacity)))["template"]
    assert "annotations" not in template["metadata"]


def test_adapters(write: Write) -> None:
    efa = {"instance_types": ["p5.48xlarge"], "nodes": 2}
    training = {"dataset": "text", "config": {"steps": 10, "global_batch_size": 16}}
    limits = job_spec(made(write(capacity=efa, training=training)))["template"]["spec"]["containers"][0]["resources"][
        "limits"
    ]
    assert limits == {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"}
    resources = job_spec(made(write({"efa": 4}, capacity=efa, training=training)))["template"]["spec"]["containers"][0][
        "resources"
    ]
    assert resources["limits"]["vpc.amazonaws.com/efa"] == "4" and "memory" in resources["requests"]


def test_a_shared_gpu(write: Write) -> None:
    shared = {"gpus": 1, "gpu_resource": "nvidia.com/gpu.shared"}
    spec = job_spec(made(write(shared, capacity={"instance_types": ["g6.12xlarge"]})))
    assert spec["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu.shared": "1"}


def test_topology_is_an_affinity_or_kueues_annotation(write: Write) -> None:
    file = write({"topology": "topology.kubernetes.io/zone"})
    pod = job_spec(made(file))["template"]
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "topology.kubernetes.io/zone"
    assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    pod = job_spec(made(file, queue="gpus"))["template"]
    assert "podAffinity" not in pod["spec"]["affinity"]
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == "topology.kubernetes.io/zone"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_queue_is_on_the_object_that_kueue_manages(write: Write, flavour: Flavour) -> None:
    *others, job = made(write(), flavour, queue="gpus")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert all("kueue.x-k8s.io/queue-name" not in json.dumps(each) for each in others)


def test_a_time_limit_ends_the_job(write: Write) -> None:
    assert job_spec(made(write(limits={"run_hours": 2.5})))["activeDeadlineSeconds"] == 9000


def test_the_grace_period_covers_the_save(write: Write) -> None:
    def grace(file: Path) -> int:
        return int(job_spec(made(file))["template"]["spec"]["terminationGracePeriodSeconds"])

    assert grace(write()) == 120
    assert grace(write({"save_seconds": 300.0})) == 615
    large = {"dataset": "text", "config": {"steps": 1, "global_batch_size": 8, "model": {"preset": "gpt2-xl"}}}
    config = load(write(training=large))
    # 1.56e9 parameters of 12 bytes, in 8 shares at 85 MB/s, and 10 s
    assert saving.save_seconds(config) == pytest.approx(10 + 1.56e9 * 12 / 8 / 85e6, rel=0.05)


def test_the_digest_identifies_the_job_but_not_the_run_document(write: Write) -> None:
    def digest(file: Path) -> str:
        return str(made(file)[-1]["metadata"]["annotations"]["trainstack/digest"])

    before = digest(write())
    longer = {"dataset": "text", "config": {"steps": 11, "global_batch_size": 8}}
    assert digest(write(training=longer)) == before, "the trainers restart in place"
    assert digest(write({"image": "other:2"})) != before


def warned(file: Path) -> Iterator[str]:
    return (str(each) for each in warnings(load(file)))


@pytest.mark.parametrize(
    ("section", "sections", "expected"),
    [
        ({"save_seconds": 300.0}, {}, "does not fit into the two-minute notice of a Spot Instance"),
        ({}, {}, "kubernetes.queue: None: is not set"),
        (
            {"queue": "gpus", "flavour": "jobset"},
            {"capacity": {"instance_types": ["g6.12xlarge"], "nodes": 2, "min_nodes": 1}},
            "Kueue admits a jobset only with all its 2 pods",
        ),
        ({}, {"storage": {"deletion": "destroy"}}, "storage: 'set': has no effect with engine: kubernetes"),
        ({}, {"capacity": {"nodes": 2}}, "so the pods request no GPU"),
        ({}, {"engine": "fleet"}, "kubernetes: 'set': has no effect with engine: fleet"),
    ],
)
def test_warnings(write: Write, section: dict[str, Any], sections: dict[str, Any], expected: str) -> None:
    assert any(expected in each for each in warned(write(section, **sections)))


def test_flavour_of_the_file(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write({"flavour": "jobset"})
    assert command(*["kubernetes", "manifests", str(file)]) == 0
    assert "kind: JobSet" in capsys.readouterr().out
    assert command(*["kubernetes", "manifests", str(file), "--flavour", "job", "--kueue", "other"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert (
        documents[-1]["kind"] == "Job" and documents[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "other"
    )
    assert command(*["kubernetes", "manifests", str(file), "--flavour", "pods"]) == 2
    assert "--flavour: 'pods': must be job, jobset, trainjob" in capsys.readouterr().err


def test_nodes_of_the_cluster_that_the_stacks_create() -> None:
    example = ROOT / "config" / "clusters" / "eks.yaml"
    found = {each["kind"]: each for each in made(example)}
    node_class, pool, job = found["NodeClass"], found["NodePool"], found["Job"]
    assert node_class["apiVersion"] == "eks.amazonaws.com/v1" and node_class["spec"]["role"] == "eks-us-east-1-eks-node"
    assert node_class["spec"]["ephemeralStorage"] == {"size": "560Gi"}, "the pod's 500 GiB, and the image"
    stacks = {term["tags"]["aws:cloudformation:stack-name"] for term in node_class["spec"]["subnetSelectorTerms"]}
    assert stacks == {"eks-NetworkStack"} and len(node_class["spec"]["subnetSelectorTerms"]) == 2
    assert node_class["spec"]["tags"] == {"trainstack:deployment": "eks"}
    spec = pool["spec"]["template"]["spec"]
    assert spec["nodeClassRef"]["name"] == node_class["metadata"]["name"]
    requirements = {each["key"]: each["values"] for each in spec["requirements"]}
    assert requirements["karpenter.sh/capacity-type"] == ["spot"]
    assert requirements["node.kubernetes.io/instance-type"] == ["p5.48xlarge"]
    assert pool["spec"]["limits"] == {"nvidia.com/gpu": "32"}, "four nodes: twice capacity.nodes"
    assert pool["spec"]["disruption"] == {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "5m"}
    tolerations = job["spec"]["template"]["spec"]["tolerations"]
    assert any(each["key"] == spec["taints"][0]["key"] for each in tolerations)


def test_an_eks_section_selects_its_own_cluster(write: Write) -> None:
    assert Cluster(read_plan(write())).place == ["--namespace=default"]
    plan = read_plan(ROOT / "config" / "clusters" / "eks.yaml")
    assert Cluster(plan).place == ["--context=trainstack-eks", "--namespace=default"]


def test_other_engines_have_no_manifests(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*["kubernetes", "manifests", str(ROOT / "config" / "minimal.yaml")]) == 2
    assert "'fleet': must be kubernetes, or hyperpod with EKS for this command" in capsys.readouterr().err
    assert command(*["kubernetes", "manifests", str(ROOT / "config" / "clusters" / "hyperpod.yaml")]) == 2
    assert "'hyperpod': must be kubernetes, or hyperpod with EKS for this command" in capsys.readouterr().err


@pytest.mark.slow
def test_manifests_are_valid_in_three_versions_and_all_flavours(write: Write, tmp_path: Path) -> None:
    assert PYTHON.exists(), f"{PYTHON} does not exist; run `make build/kubernetes-venv/.installed`"
    folder = tmp_path / "manifests"
    folder.mkdir()
    full = {
        key: value
        for key, value in EDITS.items()
        if value is not None and key not in ("gpus", "provisioner", "memory_gib")
    }
    shrinking = {"instance_types": ["g6.12xlarge"], "nodes": 2, "min_nodes": 1}
    files = {
        "least": lambda: write(),
        "full": lambda: write({**full, "memory_gib": 64}, capacity=shrinking, limits={"run_hours": 1.0}),
        "example": lambda: ROOT / "config" / "kubernetes" / "two-nodes.yaml",
    }
    for name, file in files.items():
        for flavour in FLAVOURS:
            (folder / f"{name}-{flavour}.yaml").write_text(manifest_text(made(file(), flavour)))
    wrong = made(write())
    wrong[-1]["spec"]["podFailurePolicy"]["rules"][0]["exitCodes"] = [1]
    (folder / "wrong-job.yaml").write_text(manifest_text(wrong))
    wrong = made(write(), "trainjob")
    wrong[-1]["spec"]["podFailurePolicy"] = {}
    wrong[-1]["spec"]["nodes"] = 2
    (folder / "wrong-trainjob.yaml").write_text(manifest_text(wrong))
    program = Path(__file__).parent / "schema_check.py"
    done = subprocess.run([PYTHON, program, folder, *VERSIONS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    failed = {name: problems for name, problems in report.items() if problems}
    assert set(failed) == {"wrong-job Job", "wrong-trainjob TrainJob"}, failed
    assert len(failed["wrong-job Job"]) == len(VERSIONS)
    assert len(report) > 20
