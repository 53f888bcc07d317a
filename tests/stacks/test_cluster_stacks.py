"""The stacks of managed clusters: their templates, checkers and life-cycle scripts."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bootstrap.documents import Lustre
from stacks.artifacts.lifecycle import lifecycle_folder
from stacks.changes.templates.template_set import read_cloud_assembly
from stacks.constructs.nodes.cluster_nodes import mount_script, user_data
from stacks.loading import load

from .conftest import CLUSTERS, ROOT, Assembly, Synthesis, findings

LUSTRE = Lustre("fs-1.fsx.us-east-1.amazonaws.com", "abcde", "/fsx", "relatime,flock", -1)


def example(synthesis: Synthesis, name: str) -> Assembly:
    return synthesis.of(f"clusters/{name}")


@pytest.mark.parametrize("name", CLUSTERS)
def test_checkers_find_nothing(synthesis: Synthesis, name: str) -> None:
    made = synthesis.of(name)
    config = load(ROOT / "config" / f"{name}.yaml")
    assert set(read_cloud_assembly(made.directory)) == set(config.stacks)
    assert findings(made, config.region) == []


def test_pcs_cluster_scales_to_zero_spot_instances(synthesis: Synthesis) -> None:
    made = example(synthesis, "pcs")
    cluster = made.one("PcsStack", "AWS::PCS::Cluster")["Properties"]
    assert (cluster["Name"], cluster["Size"]) == ("trainstack-pcs", "SMALL")
    assert cluster["Scheduler"] == {"Type": "SLURM", "Version": "25.11"}
    groups = made.of_type("PcsStack", "AWS::PCS::ComputeNodeGroup")
    nodes, login = groups["Nodes"]["Properties"], groups["Login"]["Properties"]
    assert nodes["PurchaseOption"] == "SPOT" and login["PurchaseOption"] == "ONDEMAND"
    assert nodes["ScalingConfiguration"] == {"MinInstanceCount": 0, "MaxInstanceCount": 2}
    assert login["ScalingConfiguration"] == {"MinInstanceCount": 1, "MaxInstanceCount": 1}
    assert nodes["InstanceConfigs"] == [{"InstanceType": "p5.48xlarge"}]
    assert nodes["SubnetIds"] == login["SubnetIds"] == cluster["Networking"]["SubnetIds"]
    queue = made.one("PcsStack", "AWS::PCS::Queue")["Properties"]
    assert queue["Name"] == "gpu"
    assert queue["ComputeNodeGroupConfigurations"] == [{"ComputeNodeGroupId": {"Fn::GetAtt": ["Nodes", "Id"]}}]


def test_pcs_nodes_have_the_path_and_the_right_that_pcs_requires(synthesis: Synthesis) -> None:
    made = example(synthesis, "pcs")
    assert made.one("PcsStack", "AWS::IAM::Role")["Properties"]["Path"] == "/aws-pcs/"
    assert made.one("PcsStack", "AWS::IAM::InstanceProfile")["Properties"]["Path"] == "/aws-pcs/"
    (role,) = made.of_type("PcsStack", "AWS::IAM::Role")
    assert made.statements("PcsStack", role)["RegisterNodes"]["Action"] == "pcs:RegisterComputeNodeGroupInstance"
    services = [json.dumps(one["Properties"]["ServiceName"])
                for one in made.of_type("NetworkStack", "AWS::EC2::VPCEndpoint").values()]  # fmt: skip
    assert any(name.endswith('.pcs"') for name in services) and not any("autoscaling" in name for name in services)
    policy = json.dumps(made.one("StorageStack", "AWS::KMS::Key")["Properties"]["KeyPolicy"])
    assert "role/aws-service-role/pcs.amazonaws.com/AWSServiceRoleForPCS" in policy
    assert "AWSServiceRoleForAutoScaling" not in policy


def test_pcs_nodes_use_the_launch_template(synthesis: Synthesis) -> None:
    made = example(synthesis, "pcs")
    templates = made.of_type("PcsStack", "AWS::EC2::LaunchTemplate")
    nodes, login = (templates[name]["Properties"]["LaunchTemplateData"] for name in ("NodeTemplate", "LoginTemplate"))
    assert nodes["MetadataOptions"]["HttpTokens"] == login["MetadataOptions"]["HttpTokens"] == "required"
    assert nodes["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert [one["InterfaceType"] for one in nodes["NetworkInterfaces"]].count("efa-only") == 32
    assert len(login["NetworkInterfaces"]) == 1 and "Placement" in nodes and "Placement" not in login
    assert "IamInstanceProfile" not in nodes
    names = [{tag["Key"]: tag["Value"] for tag in data["TagSpecifications"][0]["Tags"]}["Name"]
             for data in (nodes, login)]  # fmt: skip
    assert names == ["pcs-node", "pcs-login"]


def test_checkpoints_in_a_bucket_need_one_grant(synthesis: Synthesis) -> None:
    made = synthesis.variant("pcs-s3", {"slurm.checkpoints": "/fsx/local,s3://bucket/runs"}, base="clusters/pcs")
    (role,) = made.of_type("PcsStack", "AWS::IAM::Role")
    granted = made.statements("PcsStack", role)
    assert json.dumps(granted["UseCheckpoints"]["Resource"]).endswith(':s3:::bucket/runs/*"]]}')
    assert json.dumps(granted["ListCheckpoints"]["Resource"]).endswith(':s3:::bucket"]]}')


def test_user_data_is_what_cloud_init_reads() -> None:
    import email

    message = email.message_from_string(user_data(mount_script(LUSTRE, "/fsx/run")))
    (part,) = message.get_payload()  # type: ignore[misc]
    assert part.get_content_type() == "text/x-shellscript"  # type: ignore[union-attr]
    assert part.get_payload().startswith("#!/bin/bash\n")  # type: ignore[union-attr]


TOOLS = {
    "mount": 'echo "mount $*" >>"$LOG"; test -n "${FAILS:-}" && exit 32; touch "$STATE/mounted"',
    "mountpoint": 'test -e "$STATE/mounted"',
    "shutdown": 'echo "shutdown $*" >>"$LOG"',
    "sleep": ":",
}


def run_mount(folder: Path, **variables: str) -> tuple[int, list[str]]:
    """Run the script with stand-ins for the tools of the machine. Return its code and the calls."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name, body in TOOLS.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    lustre = Lustre(LUSTRE.dns_name, LUSTRE.mount_name, str(folder / "fsx"), LUSTRE.options, LUSTRE.stripe_count)
    script = mount_script(lustre, str(folder / "fsx" / "run")).replace("/etc/fstab", str(folder / "fstab"))
    (folder / "fstab").touch()
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "LOG": str(folder / "log"), "STATE": str(folder), **variables}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    log = folder / "log"
    return done.returncode, log.read_text().splitlines() if log.exists() else []


def test_mount_script_can_run_twice(tmp_path: Path) -> None:
    source = f"{LUSTRE.dns_name}@tcp:/{LUSTRE.mount_name}"
    for _ in range(2):
        code, calls = run_mount(tmp_path)
        assert code == 0 and calls == [f"mount -t lustre -o relatime,flock {source} {tmp_path}/fsx"]
    assert (tmp_path / "fstab").read_text() == f"{source} {tmp_path}/fsx lustre relatime,flock,_netdev 0 0\n"
    assert (tmp_path / "fsx" / "run").stat().st_mode & 0o7777 == 0o1777


def test_node_without_the_file_system_shuts_down(tmp_path: Path) -> None:
    code, calls = run_mount(tmp_path, FAILS="1")
    assert code == 1 and len(calls) == 7 and calls[-1] == "shutdown -h now"
    assert not (tmp_path / "fsx" / "run").exists()


def test_user_data_in_the_template_contains_the_script(synthesis: Synthesis) -> None:
    data = example(synthesis, "pcs").of_type("PcsStack", "AWS::EC2::LaunchTemplate")["NodeTemplate"]
    text = _joined(data["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"])
    assert len(base64.b64encode(text.encode())) < 16384
    assert "folder=/fsx/pcs" in text and "mount=/fsx " in text


def _joined(value: Any) -> str:
    return "".join(part if isinstance(part, str) else "<value>" for part in value["Fn::Join"][1])


def groups_of(cluster: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {group["InstanceGroupName"]: group for group in cluster["Properties"]["InstanceGroups"]}


def test_hyperpod_cluster_with_slurm(synthesis: Synthesis) -> None:
    made = example(synthesis, "hyperpod")
    cluster = made.one("HyperPodStack", "AWS::SageMaker::Cluster")
    assert cluster["Properties"]["NodeRecovery"] == "Automatic"
    assert cluster["Properties"]["Orchestrator"] == {"Slurm": {"SlurmConfigStrategy": "Managed"}}
    groups = groups_of(cluster)
    assert {name: group["SlurmConfig"] for name, group in groups.items()} == {
        "nodes": {"NodeType": "Compute", "PartitionNames": ["gpu"]},
        "controller": {"NodeType": "Controller"},
        "login": {"NodeType": "Login"},
    }
    nodes = groups["nodes"]
    assert (nodes["InstanceType"], nodes["InstanceCount"]) == ("ml.p5.48xlarge", 2)
    assert nodes["OnStartDeepHealthChecks"] == ["InstanceStress", "InstanceConnectivity"]
    assert "OnStartDeepHealthChecks" not in groups["login"] and "CapacityRequirements" not in nodes
    volumes = [one["EbsVolumeConfig"] for one in nodes["InstanceStorageConfigs"] if "EbsVolumeConfig" in one]
    assert all("VolumeKmsKeyId" in volume for volume in volumes) and len(volumes) == 2
    (lustre,) = (one["FsxLustreConfig"] for one in nodes["InstanceStorageConfigs"] if "FsxLustreConfig" in one)
    assert lustre["MountPath"] == "/fsx"


def test_life_cycle_scripts_are_in_the_folder_that_up_uploads(synthesis: Synthesis) -> None:
    config = load(ROOT / "config" / "clusters" / "hyperpod.yaml")
    folder = lifecycle_folder(config)
    cluster = example(synthesis, "hyperpod").one("HyperPodStack", "AWS::SageMaker::Cluster")
    files = folder.files("my-bucket")
    for name, group in groups_of(cluster).items():
        life_cycle = group["LifeCycleConfig"]
        assert life_cycle["OnInitComplete"] == f"{name}.sh" and f"{name}.sh" in files and "OnCreate" not in life_cycle
        assert json.dumps(life_cycle["SourceS3Uri"]).endswith(f'/{folder.prefix}"]]}}')
    assert json.loads(files["settings.json"])["reports"] == "s3://my-bucket/nodes/hyperpod"
    assert lifecycle_folder(config).digest == folder.digest
    edited = config.model_copy(update={"name": "other"})
    assert lifecycle_folder(edited).digest != folder.digest


EKS = {
    "hyperpod": {
        "orchestrator": "eks",
        "eks_cluster_arn": "arn:aws:eks:us-east-1:123456789012:cluster/gpus",
        "security_group_ids": ["sg-0123456789abcdef0"],
    },
    "slurm": None,
    "kubernetes": {"image": "x:1", "bucket": "my-bucket", "gpus": 8},
    "storage": {},
    "network": {
        "existing": {
            "id": "vpc-0123456789abcdef0",
            "cidr": "10.0.0.0/16",
            "subnets": [{"id": "subnet-0123456789abcdef0", "zone": "a"}],
        }
    },
    "capacity.market": "spot",
}


def test_eks_cluster_in_auto_mode(synthesis: Synthesis) -> None:
    made = example(synthesis, "eks")
    cluster = made.one("EksStack", "AWS::EKS::Cluster")["Properties"]
    assert cluster["AccessConfig"]["AuthenticationMode"] == "API"
    assert cluster["ComputeConfig"]["NodePools"] == ["general-purpose", "system"], "for the add-on"
    vpc = cluster["ResourcesVpcConfig"]
    assert len(vpc["SubnetIds"]) == 2 and vpc["PublicAccessCidrs"] == ["192.0.2.0/24"]
    assert cluster["EncryptionConfig"][0]["Resources"] == ["secrets"]
    entries = made.of_type("EksStack", "AWS::EKS::AccessEntry")
    assert [entry["Properties"]["PrincipalArn"] for entry in entries.values()] == [
        "arn:aws:iam::123456789012:role/operator"
    ]
    tagging = made.statements("EksStack", cluster["RoleArn"]["Fn::GetAtt"][0])["TagNodes"]
    assert "ec2:RunInstances" in tagging["Action"], "the node class has tags, which EKS's policies do not permit"
    association = made.one("EksStack", "AWS::EKS::PodIdentityAssociation")["Properties"]
    assert (association["Namespace"], association["ServiceAccount"]) == ("default", "trainer")
    pod_role = association["RoleArn"]["Fn::GetAtt"][0]
    granted = made.statements("EksStack", pod_role)
    assert json.dumps(granted["WriteRecords"]["Resource"]).count("my-training-bucket/") == 2
    (addon,) = made.of_type("EksStack", "AWS::EKS::Addon").values()
    assert addon["Properties"]["AddonName"] == "metrics-server"
    services = [json.dumps(one["Properties"]["ServiceName"])
                for one in made.of_type("NetworkStack", "AWS::EC2::VPCEndpoint").values()]  # fmt: skip
    for name in ("ecr.api", "ecr.dkr", "eks", "eks-auth", "ec2", "sts"):
        assert any(service.endswith(f'.{name}"') for service in services), name


def test_private_eks_cluster_without_add_ons(synthesis: Synthesis) -> None:
    admins = ["arn:aws:iam::123456789012:role/operator"]
    made = synthesis.variant("eks-private", {"eks": {"admins": admins}}, base="clusters/eks")
    cluster = made.one("EksStack", "AWS::EKS::Cluster")["Properties"]
    assert cluster["ComputeConfig"] == {"Enabled": True, "NodePools": []}
    assert cluster["ResourcesVpcConfig"]["EndpointPublicAccess"] is False
    entries = made.of_type("EksStack", "AWS::EKS::AccessEntry")
    assert {entry["Properties"]["Type"] for entry in entries.values()} == {"EC2", "STANDARD"}
    (node,) = (entry for entry in entries.values() if entry["Properties"]["Type"] == "EC2")
    assert "AmazonEKSAutoNodePolicy" in json.dumps(node["Properties"]["AccessPolicies"])


def test_hyperpod_cluster_with_eks_and_spot_instances(synthesis: Synthesis) -> None:
    made = synthesis.variant("hyperpod-eks", EKS, base="clusters/hyperpod")
    cluster = made.one("HyperPodStack", "AWS::SageMaker::Cluster")
    assert cluster["Properties"]["Orchestrator"] == {"Eks": {"ClusterArn": EKS["hyperpod"]["eks_cluster_arn"]}}  # type: ignore[index]
    vpc = cluster["Properties"]["VpcConfig"]
    assert vpc["Subnets"] == ["subnet-0123456789abcdef0"] and vpc["SecurityGroupIds"][1] == "sg-0123456789abcdef0"
    (nodes,) = groups_of(cluster).values()
    assert nodes["CapacityRequirements"] == {"Spot": {}} and "SlurmConfig" not in nodes
    assert nodes["LifeCycleConfig"]["OnCreate"] == "nodes.sh"
    assert not [one for one in nodes["InstanceStorageConfigs"] if "FsxLustreConfig" in one]
    (role,) = made.of_type("HyperPodStack", "AWS::IAM::Role")
    granted = made.statements("HyperPodStack", role)["AttachNodesToVpc"]["Action"]
    assert "eks-auth:AssumeRoleForPodIdentity" in granted and "ec2:AssignPrivateIpAddresses" in granted
    assert findings(made) == []
