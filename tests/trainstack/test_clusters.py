"""The engine of managed clusters, against answers that botocore checks with the services' models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.stub import Stubber

from stacks.artifacts.lifecycle import lifecycle_folder
from stacks.loading import load
from trainstack import dispatch
from trainstack.clusters import opening
from trainstack.clusters.eks import EksCluster
from trainstack.clusters.engine import ManagedEngine
from trainstack.clusters.hyperpod import HyperPodCluster, upload_scripts
from trainstack.clusters.pcs import PcsCluster
from trainstack.clusters.state import Cluster, ClusterState
from trainstack.commands import main
from trainstack.engines.engine import LogQuery, Submission
from trainstack.kubernetes.command import read_plan as kubernetes_plan
from trainstack.observe.why import Explanation
from trainstack.operate import deploying
from trainstack.session import CommandError
from trainstack.slurm.command import read_plan
from trainstack.slurm.script import script_text

ROOT = Path(__file__).resolve().parents[2]
FILE = Path("x.yaml")
SUBMISSION = Submission((), 10, False, False)
NOW = datetime(2026, 11, 1, tzinfo=UTC)
ARN = "arn:aws:pcs:us-east-1:123456789012:cluster/pcs_1"
COMMON = {"arn": ARN, "createdAt": NOW, "modifiedAt": NOW}
QUERY = LogQuery("", None, 60.0, False)


class Jobs:
    """An engine that records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, submission: Submission) -> None:
        self.calls.append(submission)

    def observe(self) -> Explanation:
        return Explanation("running", "", "the run trains", (), "")

    explain = observe

    def logs(self, query: LogQuery) -> Iterator[str]:
        yield f"line {query.since_seconds:.0f}"

    def stop(self, *, waits: bool, as_json: bool) -> None:
        self.calls.append(("stop", waits, as_json))

    def resume(self, *, waits: bool, as_json: bool) -> None:
        self.calls.append(("resume", waits, as_json))


class Fixed:
    """A cluster with a fixed state."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def read(self) -> ClusterState:
        return self._state


READY = ClusterState("PCS", "trainstack-x", "ACTIVE", True, (), (), "open a shell on the login node")
MISSING = ClusterState("PCS", "trainstack-x", "", False, (), (), "")
FAILED = ClusterState("PCS", "trainstack-x", "CREATE_FAILED", False, (), ("cluster x: Quota: too many",), "shell")


def engine(cluster: Cluster, jobs: Jobs | None, **options: bool) -> tuple[ManagedEngine, list[Any]]:
    deployed: list[Any] = []
    return ManagedEngine(cluster, FILE, lambda *given: deployed.append(given), jobs, **options), deployed


PCS_CLUSTER = {
    **COMMON,
    "name": "trainstack-x",
    "id": "pcs_1",
    "status": "ACTIVE",
    "scheduler": {"type": "SLURM", "version": "25.11"},
    "size": "SMALL",
    "networking": {"subnetIds": ["subnet-1"]},
}


def pcs_answers(
    stub: Stubber, *, name: str = "trainstack-x", status: str = "ACTIVE", error: dict[str, str] | None = None
) -> None:
    """Add the answers of PCS about a cluster with two node groups and a queue."""
    stub.add_response("get_cluster", {"cluster": {**PCS_CLUSTER, "name": name}}, {"clusterIdentifier": name})
    groups = [("nodes", "pcs_n", status, "SPOT", (0, 2)), ("login", "pcs_l", "ACTIVE", "ONDEMAND", (1, 1))]
    listed = [{**COMMON, "name": label, "id": id_, "clusterId": "pcs_1", "status": state}
              for label, id_, state, *_ in groups]  # fmt: skip
    stub.add_response("list_compute_node_groups", {"computeNodeGroups": listed}, {"clusterIdentifier": "pcs_1"})
    for label, id_, state, option, (least, most) in groups:
        group = {
            **COMMON,
            "name": label,
            "id": id_,
            "clusterId": "pcs_1",
            "status": state,
            "subnetIds": ["subnet-1"],
            "iamInstanceProfileArn": "arn:aws:iam::123456789012:instance-profile/aws-pcs/x",
            "purchaseOption": option,
            "scalingConfiguration": {"minInstanceCount": least, "maxInstanceCount": most},
            "instanceConfigs": [{"instanceType": "p5.48xlarge"}],
            **({"errorInfo": [error]} if error is not None and label == "nodes" else {}),
        }
        expected = {"clusterIdentifier": "pcs_1", "computeNodeGroupIdentifier": id_}
        stub.add_response("get_compute_node_group", {"computeNodeGroup": group}, expected)
    queue = {**COMMON, "name": "gpu", "id": "pcs_q", "clusterId": "pcs_1", "status": "ACTIVE"}
    stub.add_response("list_queues", {"queues": [queue]}, {"clusterIdentifier": "pcs_1"})
    described = {"queue": {**queue, "computeNodeGroupConfigurations": [{"computeNodeGroupId": "pcs_n"}]}}
    stub.add_response("get_queue", described, {"clusterIdentifier": "pcs_1", "queueIdentifier": "pcs_q"})


@pytest.fixture
def pcs() -> Iterator[tuple[PcsCluster, Stubber]]:
    client = boto3.client("pcs", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")  # noqa: S106 stub
    with Stubber(client) as stub:
        yield PcsCluster(client, "x", "x.yaml"), stub
        stub.assert_no_pending_responses()


def test_reads_a_cluster_of_pcs(pcs: tuple[PcsCluster, Stubber]) -> None:
    cluster, stub = pcs
    pcs_answers(stub)
    state = cluster.read()
    assert state.is_ready and not state.problems
    assert state.lines() == [
        "PCS cluster trainstack-x: ACTIVE",
        "node group nodes: ACTIVE, 0 to 2 x (p5.48xlarge), SPOT",
        "node group login: ACTIVE, 1 to 1 x (p5.48xlarge), ONDEMAND",
        "queue gpu: ACTIVE",
    ]
    assert "Name=tag:Name,Values=x-login" in state.access


def test_explains_a_failed_node_group(pcs: tuple[PcsCluster, Stubber]) -> None:
    cluster, stub = pcs
    pcs_answers(stub, status="CREATE_FAILED", error={"code": "InvalidAmi", "message": "the image has no agent"})
    found = ManagedEngine(cluster, FILE, lambda *_: None, Jobs()).explain()
    assert found.to_json()["cause"] == "cluster_failed"
    assert any("node group nodes: InvalidAmi: the image has no agent" in line for line in found.lines())


def test_cluster_that_does_not_exist(pcs: tuple[PcsCluster, Stubber]) -> None:
    cluster, stub = pcs
    for _ in range(2):
        stub.add_client_error("get_cluster", "ResourceNotFoundException", "no such cluster")
    state = cluster.read()
    assert not state.status and "does not exist" in state.summary()
    assert ManagedEngine(cluster, FILE, lambda *_: None, None).explain().to_json()["cause"] == "no_cluster"


@pytest.mark.parametrize("call", ["list_compute_node_groups", "list_queues"])
def test_cluster_deleted_between_two_calls(pcs: tuple[PcsCluster, Stubber], call: str) -> None:
    cluster, stub = pcs
    stub.add_response("get_cluster", {"cluster": PCS_CLUSTER}, {"clusterIdentifier": "trainstack-x"})
    if call == "list_queues":
        stub.add_response("list_compute_node_groups", {"computeNodeGroups": []}, {"clusterIdentifier": "pcs_1"})
    stub.add_client_error(call, "ResourceNotFoundException", "no such cluster")
    assert cluster.read() == MISSING


def test_rejected_call_is_an_error(pcs: tuple[PcsCluster, Stubber]) -> None:
    cluster, stub = pcs
    stub.add_client_error("get_cluster", "AccessDeniedException", "not authorized to perform pcs:GetCluster")
    with pytest.raises(CommandError, match="not authorized"):
        cluster.read()


def test_a_machine_without_slurm_deploys_and_shows_the_way_to_the_login_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    managed, deployed = engine(Fixed(READY), None)
    managed.submit(SUBMISSION)
    assert deployed == [(FILE, (), 10)]
    assert capsys.readouterr().out.splitlines() == [
        "PCS cluster trainstack-x: ACTIVE",
        "for the run: open a shell on the login node",
    ]
    for command in (lambda: list(managed.logs(QUERY)), lambda: managed.stop(waits=True, as_json=False),
                    lambda: managed.resume(waits=True, as_json=False)):  # fmt: skip
        with pytest.raises(CommandError, match="needs Slurm's commands: open a shell on the login node"):
            command()


def test_failed_cluster_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    managed, _ = engine(Fixed(FAILED), None)
    with pytest.raises(CommandError, match="CREATE_FAILED"):
        managed.submit(SUBMISSION)
    assert "problem: cluster x: Quota: too many" in capsys.readouterr().out


def test_a_login_node_submits_jobs_and_deploys_nothing() -> None:
    jobs = Jobs()
    managed, deployed = engine(Fixed(READY), jobs)
    managed.submit(Submission((), 30, True, True))
    managed.stop(waits=False, as_json=True)
    managed.resume(waits=True, as_json=False)
    assert deployed == []
    assert jobs.calls == [Submission((), 0, True, True), ("stop", False, True), ("resume", True, False)]
    assert list(managed.logs(QUERY)) == ["line 60"]
    assert managed.observe().to_json()["run"] == managed.explain().to_json() == jobs.observe().to_json()
    with pytest.raises(CommandError, match="deploy stacks from a machine without Slurm"):
        managed.submit(Submission(("PcsStack",), 10, False, False))


@pytest.mark.parametrize("state", [MISSING, FAILED])
def test_jobs_start_only_on_a_cluster_that_is_ready(state: ClusterState) -> None:
    jobs = Jobs()
    managed, _ = engine(Fixed(state), jobs)
    with pytest.raises(CommandError, match="not ready"):
        managed.submit(SUBMISSION)
    assert jobs.calls == []


def test_commands_open_the_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    client = boto3.client("pcs", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")  # noqa: S106 stub
    monkeypatch.setattr(opening.Account, "client", lambda *_: client)
    monkeypatch.setattr(opening.shutil, "which", lambda _: None)
    with Stubber(client) as stub:
        pcs_answers(stub, name="trainstack-pcs")
        with pytest.raises(SystemExit) as ended:
            main(["status", "config/clusters/pcs.yaml", "--json"])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["cluster"]["is_ready"] is True
    assert isinstance(dispatch.engine_of("config/clusters/pcs.yaml", None), ManagedEngine)


GROUP = {"InstanceGroupName": "nodes", "InstanceType": "ml.p5.48xlarge", "CurrentCount": 2, "TargetCount": 2}
LOGIN_GROUP = {"InstanceGroupName": "login", "InstanceType": "ml.m5.xlarge", "CurrentCount": 1, "TargetCount": 1}
HYPERPOD_ARN = "arn:aws:sagemaker:us-east-1:123456789012:cluster/abc123def456"


def hyperpod_answers(stub: Stubber, *, status: str = "InService", failed_node: str = "", **group: Any) -> None:
    """Add the answers of SageMaker about a cluster with two instance groups."""
    described = {
        "ClusterArn": HYPERPOD_ARN,
        "ClusterStatus": status,
        "InstanceGroups": [{**GROUP, "Status": "InService", **group}, {**LOGIN_GROUP, "Status": "InService"}],
    }
    stub.add_response("describe_cluster", described, {"ClusterName": "trainstack-x"})
    nodes = [
        {
            "InstanceGroupName": name,
            "InstanceId": instance,
            "InstanceType": "ml.p5.48xlarge",
            "LaunchTime": NOW,
            "InstanceStatus": {"Status": "Failure", "Message": failed_node} if failed and failed_node else
            {"Status": "Running"},
        }
        for name, instance, failed in (("nodes", "i-1", True), ("nodes", "i-2", False), ("login", "i-3", False))
    ]  # fmt: skip
    stub.add_response("list_cluster_nodes", {"ClusterNodeSummaries": nodes}, {"ClusterName": "trainstack-x"})


@pytest.fixture
def sagemaker() -> Iterator[tuple[Any, Stubber]]:
    client = boto3.client("sagemaker", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")  # noqa: S106 stub
    with Stubber(client) as stub:
        yield client, stub
        stub.assert_no_pending_responses()


def test_reads_a_cluster_of_hyperpod(sagemaker: tuple[Any, Stubber]) -> None:
    client, stub = sagemaker
    hyperpod_answers(stub)
    state = HyperPodCluster(client, "x", has_shell=True).read()
    assert state.is_ready and state.lines() == [
        "HyperPod cluster trainstack-x: InService",
        "instance group nodes: InService, 2 of 2 x ml.p5.48xlarge (2 Running)",
        "instance group login: InService, 1 of 1 x ml.m5.xlarge (1 Running)",
    ]
    assert state.access.endswith("--target sagemaker-cluster:abc123def456_login-i-3`")


def test_failed_node_is_explained_with_the_events(sagemaker: tuple[Any, Stubber]) -> None:
    client, stub = sagemaker
    hyperpod_answers(stub, status="Failed", failed_node="lifecycle script failed", Status="Degraded")
    event = {
        "EventId": "0123456789ab",
        "ClusterArn": HYPERPOD_ARN,
        "ClusterName": "trainstack-x",
        "ResourceType": "Instance",
        "EventTime": NOW,
        "InstanceId": "i-1",
        "EventLevel": "Error",
        "Description": "the script nodes.sh ended with code 1",
    }
    listed = {"Events": [event, {**event, "EventLevel": "Info", "Description": "launched"}]}
    request = {"ClusterName": "trainstack-x", "SortBy": "EventTime", "SortOrder": "Descending", "MaxResults": 20}
    stub.add_response("list_cluster_events", listed, request)
    state = HyperPodCluster(client, "x", has_shell=True).read()
    assert not state.is_ready and state.problems == (
        "cluster: Failed",
        "instance group nodes: Degraded",
        "node i-1 of nodes: lifecycle script failed",
        "event of i-1: the script nodes.sh ended with code 1",
    )


def test_events_are_optional(sagemaker: tuple[Any, Stubber]) -> None:
    client, stub = sagemaker
    hyperpod_answers(stub, failed_node="x")
    stub.add_client_error("list_cluster_events", "AccessDeniedException", "not authorized")
    assert HyperPodCluster(client, "x", has_shell=True).read().problems == ("node i-1 of nodes: x",)


def test_cluster_without_nodes_is_not_ready(sagemaker: tuple[Any, Stubber]) -> None:
    client, stub = sagemaker
    hyperpod_answers(stub, CurrentCount=0)
    state = HyperPodCluster(client, "x", has_shell=False).read()
    assert not state.is_ready and not state.problems and state.access == ""
    stub.add_client_error("describe_cluster", "ResourceNotFound", "no such cluster")
    assert not HyperPodCluster(client, "x", has_shell=False).read().status


def test_scripts_are_uploaded_between_the_deploys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(deploying.programs, "run", lambda command, _: calls.append(command[3:]) or 30)
    with pytest.raises(CommandError, match="code 30"):
        deploying.deploy_stacks(FILE, (), 30, persistent=lambda: calls.append("upload"))
    codes = iter([30, 0, 0])
    monkeypatch.setattr(deploying.programs, "run", lambda command, _: calls.append(command[3:]) or next(codes))
    calls.clear()
    deploying.deploy_stacks(FILE, (), 30, persistent=lambda: calls.append("upload"))
    assert calls == [
        ["diff", "x.yaml"],
        ["deploy", "x.yaml", "NetworkStack", "StorageStack", "--yes"],
        "upload",
        ["deploy", "x.yaml", "--yes"],
    ]


def test_upload_of_the_scripts() -> None:
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    s3, cloudformation = (boto3.client(name, "us-east-1", **keys) for name in ("s3", "cloudformation"))
    folder = lifecycle_folder(load(ROOT / "config" / "clusters" / "hyperpod.yaml"))
    outputs = [{"OutputKey": "ControlBucket", "OutputValue": "control"}]
    stack = {"StackName": "x-StorageStack", "CreationTime": NOW, "StackStatus": "CREATE_COMPLETE", "Outputs": outputs}
    with Stubber(s3) as objects, Stubber(cloudformation) as stacks:
        stacks.add_response("describe_stacks", {"Stacks": [stack]}, {"StackName": "x-StorageStack"})
        for name, content in folder.files("control").items():
            request = {"Bucket": "control", "Key": f"{folder.prefix}/{name}", "Body": content}
            objects.add_response("put_object", {}, request)
        assert upload_scripts(s3, cloudformation, "x-StorageStack", folder) == f"s3://control/{folder.prefix}"
        objects.assert_no_pending_responses()
        stacks.add_client_error("describe_stacks", "ValidationError", "does not exist")
        with pytest.raises(CommandError, match="cannot be uploaded"):
            upload_scripts(s3, cloudformation, "x-StorageStack", folder)


@pytest.mark.parametrize(("status", "is_ready"), [("ACTIVE", True), ("CREATING", False), ("FAILED", False)])
def test_reads_a_cluster_of_eks(status: str, is_ready: bool) -> None:
    client = boto3.client("eks", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")  # noqa: S106 stub
    issues = [{"code": "Ec2SubnetNotFound", "message": "no subnet"}] if status == "FAILED" else []
    cluster = {"name": "trainstack-x", "status": status, "version": "1.35", "health": {"issues": issues}}
    with Stubber(client) as stub:
        stub.add_response("describe_cluster", {"cluster": cluster}, {"name": "trainstack-x"})
        state = EksCluster(client, "x", "us-east-1").read()
        command = "aws eks update-kubeconfig --name trainstack-x --alias trainstack-x"
        assert state.is_ready is is_ready and command in state.access
        assert state.problems == (("Ec2SubnetNotFound: no subnet",) if issues else ())
        stub.add_client_error("describe_cluster", "ResourceNotFoundException", "no such cluster")
        assert not EksCluster(client, "x", "us-east-1").read().status


def test_pods_are_submitted_from_the_machine_that_deploys() -> None:
    jobs = Jobs()
    managed, deployed = engine(Fixed(READY), jobs, deploys_with_jobs=True)
    managed.submit(SUBMISSION)
    managed.submit(Submission(("EksStack",), 20, False, False))
    assert deployed == [(FILE, (), 10), (FILE, ("EksStack",), 20)]
    assert jobs.calls == [Submission((), 0, False, False)], "deploying one stack does not start the run"


def test_hyperpod_with_eks_has_no_slurm_jobs(tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "config" / "clusters" / "hyperpod.yaml").read_text())
    network = {"id": "vpc-0123456789abcdef0", "cidr": "10.0.0.0/16"}
    subnets = [{"id": "subnet-0123456789abcdef0", "zone": "a"}]
    orchestrator = {
        "orchestrator": "eks",
        "eks_cluster_arn": "arn:aws:eks:us-east-1:123456789012:cluster/gpus",
        "security_group_ids": ["sg-0123456789abcdef0"],
    }
    changes = {
        "hyperpod": orchestrator,
        "slurm": None,
        "kubernetes": {"image": "x:1", "bucket": "my-bucket"},
        "network": {"existing": {**network, "subnets": subnets}},
        "storage": {},
        "node": {},
    }
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump({**document, **changes}))
    with pytest.raises(CommandError, match="'hyperpod': must be slurm, pcs, or hyperpod with Slurm for this command"):
        read_plan(file)
    assert kubernetes_plan(file).config.runs_pods


def test_hyperpod_restarts_the_step_on_a_new_node(tmp_path: Path) -> None:
    file = ROOT / "config" / "clusters" / "hyperpod.yaml"
    assert " --auto-resume=1 " in script_text(read_plan(file))
    edited = tmp_path / "x.yaml"
    edited.write_text(file.read_text().replace("node_recovery: true", "node_recovery: false"))
    assert "--auto-resume" not in script_text(read_plan(edited))
    assert "--auto-resume" not in script_text(read_plan(ROOT / "config" / "clusters" / "pcs.yaml"))
