"""StorageStack: privacy, encryption and retention of data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootstrap.documents import NodeDocument

from .conftest import Assembly, Synthesis

STACK = "StorageStack"
# Deletion and replacement keep the data; the rollback of a first create deletes the empty resources. Source (2026-11):
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html
KEPT = ("RetainExceptOnCreate", "Retain")


def buckets(assembly: Assembly) -> dict[str, dict[str, Any]]:
    return assembly.of_type(STACK, "AWS::S3::Bucket")


@pytest.mark.parametrize("deletion", ["single-gpu", "demo"])
def test_data_is_retained_unless_both_keys_are_set(synthesis: Synthesis, deletion: str) -> None:
    """The demo's file has deletion: destroy, without -c allow-destroy=true."""
    for kind in ("AWS::S3::Bucket", "AWS::KMS::Key"):
        items = synthesis.of(deletion).of_type(STACK, kind).values()
        assert {(item["DeletionPolicy"], item["UpdateReplacePolicy"]) for item in items} == {KEPT}


def test_both_keys_destroy(synthesis: Synthesis) -> None:
    both = synthesis.variant("destroy", {"storage.deletion": "destroy"}, **{"allow-destroy": "true"})
    assert {item["DeletionPolicy"] for item in buckets(both).values()} == {"Delete"}
    one = synthesis.variant("retain", {"storage.deletion": "retain"}, **{"allow-destroy": "true"})
    assert {item["DeletionPolicy"] for item in buckets(one).values()} == {KEPT[0]}


def test_termination_protection_follows_the_config(synthesis: Synthesis) -> None:
    manifest = json.loads((synthesis.of("single-gpu").directory / "manifest.json").read_text())
    assert manifest["artifacts"]["StorageStack"]["properties"]["terminationProtection"] is True


def test_no_bucket_is_public(demo: Assembly) -> None:
    blocks = [item["Properties"]["PublicAccessBlockConfiguration"] for item in buckets(demo).values()]
    assert blocks and all(set(block.values()) == {True} for block in blocks)


def test_each_bucket_requires_tls(demo: Assembly) -> None:
    refusing = set()
    for item in demo.of_type(STACK, "AWS::S3::BucketPolicy").values():
        for statement in item["Properties"]["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Deny" and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}:
                refusing.add(item["Properties"]["Bucket"]["Ref"])
    assert refusing == set(buckets(demo))


def test_data_uses_the_deployments_key(demo: Assembly) -> None:
    (key,) = demo.of_type(STACK, "AWS::KMS::Key")
    for name in ("Datasets", "Checkpoints", "Control"):
        (item,) = (item for logical_id, item in buckets(demo).items() if logical_id.startswith(name))
        (rule,) = item["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == {"Fn::GetAtt": [key, "Arn"]}
        assert rule["BucketKeyEnabled"] is True


def test_key_rotates_and_allows_auto_scaling_by_condition(demo: Assembly) -> None:
    key = demo.one(STACK, "AWS::KMS::Key")["Properties"]
    assert key["EnableKeyRotation"] is True
    for statement in key["KeyPolicy"]["Statement"]:
        if statement["Principal"] == {"AWS": "*"}:
            assert "aws:PrincipalArn" in statement["Condition"]["ArnEquals"]
            assert statement["Condition"]["StringEquals"] == {"kms:CallerAccount": {"Ref": "AWS::AccountId"}}


def test_control_bucket_sends_events(demo: Assembly) -> None:
    (item,) = (item for name, item in buckets(demo).items() if name.startswith("Control"))
    events = item["Properties"]["NotificationConfiguration"]
    assert events == {"EventBridgeConfiguration": {"EventBridgeEnabled": True}}


def test_abandoned_uploads_expire(demo: Assembly) -> None:
    for item in buckets(demo).values():
        rules = item["Properties"]["LifecycleConfiguration"]["Rules"]
        assert any("AbortIncompleteMultipartUpload" in rule for rule in rules)


ALL_STORAGE = {
    "storage.dataset_volume": {"snapshot_id": "snap-0123456789abcdef0", "gib": 100, "warm": "fast_snapshot_restore"},
    "storage.checkpoint_volume": {"zone": "a"},
    "storage.shared_volume": {"zone": "a", "snapshot_id": "snap-0123456789abcdef1"},
    "storage.lustre": {"zone": "a"},
    "storage.transfer_acceleration": True,
}


@pytest.fixture(scope="module")
def full(synthesis: Synthesis) -> Assembly:
    return synthesis.variant("all-storage", ALL_STORAGE)


def rules_of(assembly: Assembly, name: str) -> dict[str, dict[str, Any]]:
    (item,) = (item for logical_id, item in buckets(assembly).items() if logical_id.startswith(name))
    return {rule["Id"]: rule for rule in item["Properties"]["LifecycleConfiguration"]["Rules"]}


def node_document(assembly: Assembly) -> NodeDocument:
    """Return the node document of the launch template, with placeholders for deployed values."""
    (template,) = assembly.of_type("TrainingStack", "AWS::EC2::LaunchTemplate").values()
    parts = template["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"]["Fn::Join"][1]
    made_up = {"Volume": "vol-0123456789abcdef0"}
    text = "".join(
        part if isinstance(part, str) else next((made_up[key] for key in made_up if key in json.dumps(part)), "made")
        for part in parts
    )
    return NodeDocument.from_text(text[text.index('{"') :])


def test_lifecycle_rules_archive_data_and_delete_reports(demo: Assembly, synthesis: Synthesis) -> None:
    for name, prefix in (("Datasets", "datasets/"), ("Checkpoints", "runs/")):
        rule = rules_of(demo, name)["PricedByUse"]
        assert rule["Prefix"] == prefix
        assert rule["Transitions"] == [{"StorageClass": "INTELLIGENT_TIERING", "TransitionInDays": 30}]
    reports = rules_of(demo, "Control")["OldNodeReports"]
    assert (reports["Prefix"], reports["ExpirationInDays"]) == ("nodes/", 30)
    assert rules_of(demo, "AccessLogs")["OldLogs"]["ExpirationInDays"] == 90
    changes = {"archive_after_days": None, "access_log_days": 7, "node_report_days": 3}
    other = synthesis.variant("lifecycle", {f"storage.{name}": value for name, value in changes.items()})
    assert "PricedByUse" not in rules_of(other, "Checkpoints") | rules_of(other, "Datasets")
    assert rules_of(other, "AccessLogs")["OldLogs"]["ExpirationInDays"] == 7
    assert rules_of(other, "Control")["OldNodeReports"]["ExpirationInDays"] == 3


def test_only_checkpoints_have_versions_which_expire(demo: Assembly, synthesis: Synthesis) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html (2026-11)."""
    versioned = {name for name, item in buckets(demo).items() if item["Properties"].get("VersioningConfiguration")}
    assert [name.startswith("Checkpoints") for name in versioned] == [True]
    rules = rules_of(demo, "Checkpoints")
    assert rules["OldVersions"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 3}
    assert rules["OldDeleteMarkers"]["ExpiredObjectDeleteMarker"] is True
    longer = synthesis.variant("versions", {"storage.noncurrent_version_days": 30})
    assert rules_of(longer, "Checkpoints")["OldVersions"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}


def test_transfer_acceleration_is_optional(demo: Assembly, full: Assembly) -> None:
    accelerated = [name for name, item in buckets(full).items() if "AccelerateConfiguration" in item["Properties"]]
    assert len(accelerated) == 1 and accelerated[0].startswith("Datasets")
    assert not any("AccelerateConfiguration" in item["Properties"] for item in buckets(demo).values())


def test_no_volumes_and_no_volume_permissions_by_default(demo: Assembly) -> None:
    kinds = {item["Type"] for item in demo.resources(STACK).values()}
    assert kinds <= {"AWS::S3::Bucket", "AWS::S3::BucketPolicy", "AWS::KMS::Key", "AWS::IAM::ManagedPolicy"}
    assert "ec2:" not in json.dumps(demo.statements("TrainingStack", node_role(demo)))
    document = node_document(demo)
    assert (document.volumes, document.lustre) == ((), None)


def node_role(assembly: Assembly) -> str:
    (name,) = (name for name in assembly.of_type("TrainingStack", "AWS::IAM::Role") if name.startswith("NodeRole"))
    return name


def test_volumes_are_encrypted_and_retained(full: Assembly) -> None:
    (key,) = full.of_type(STACK, "AWS::KMS::Key")
    volumes = full.of_type(STACK, "AWS::EC2::Volume")
    kinds = {}
    for item in volumes.values():
        properties = item["Properties"]
        assert properties["Encrypted"] is True and properties["KmsKeyId"] == {"Fn::GetAtt": [key, "Arn"]}
        assert (item["DeletionPolicy"], item["UpdateReplacePolicy"]) == KEPT
        kinds[properties["VolumeType"]] = properties
    assert set(kinds) == {"gp3", "io2"}
    assert kinds["io2"]["MultiAttachEnabled"] is True
    assert kinds["io2"]["SnapshotId"] == "snap-0123456789abcdef1"


def test_snapshot_schedule_selects_the_checkpoint_volume_by_tag(full: Assembly) -> None:
    details = full.one(STACK, "AWS::DLM::LifecyclePolicy")["Properties"]["PolicyDetails"]
    (target,) = details["TargetTags"]
    tagged = [
        item["Properties"]["VolumeType"]
        for item in full.of_type(STACK, "AWS::EC2::Volume").values()
        if target in item["Properties"]["Tags"]
    ]
    assert tagged == ["gp3"]
    (schedule,) = details["Schedules"]
    assert (schedule["CreateRule"]["Interval"], schedule["RetainRule"]["Count"]) == (6, 4)


def test_dataset_volume_is_a_device_of_the_launch_template(full: Assembly, synthesis: Synthesis) -> None:
    rated = synthesis.variant(
        "rated",
        {
            "storage.dataset_volume": {
                **ALL_STORAGE["storage.dataset_volume"],
                "warm": "provisioned_rate",
                "warm_mib_per_second": 200,
                "warm_limit_mib_per_second": 150,
            }
        },
    )
    for assembly, rate in ((full, None), (rated, 200)):
        (template,) = assembly.of_type("TrainingStack", "AWS::EC2::LaunchTemplate").values()
        root, made = template["Properties"]["LaunchTemplateData"]["BlockDeviceMappings"]
        assert root["DeviceName"] != made["DeviceName"] == "/dev/sdf"
        assert made["Ebs"].get("VolumeInitializationRate") == rate
        assert made["Ebs"]["DeleteOnTermination"] is True
    assert not rated.of_type("TrainingStack", "Custom::FastSnapshotRestore")
    limits = [node_document(each).volumes[0].warm_limit_mib_per_second for each in (full, rated)]
    assert limits == [None, 150]


def test_fast_restore_covers_each_zone(full: Assembly) -> None:
    """It is billed by the hour, so it belongs to a stack that `destroy` deletes. It precedes the first node."""
    wanted = full.one("TrainingStack", "Custom::FastSnapshotRestore")["Properties"]
    (name,) = full.of_type("TrainingStack", "Custom::FastSnapshotRestore")
    assert name in full.one("TrainingStack", "AWS::AutoScaling::AutoScalingGroup")["DependsOn"]
    assert [zone["Fn::Join"][1][1] for zone in wanted["AvailabilityZones"]] == ["a", "b"]
    assert wanted["SnapshotId"] == "snap-0123456789abcdef0"


def test_lustre_ports_and_dataset_link(full: Assembly) -> None:
    system = full.one(STACK, "AWS::FSx::FileSystem")["Properties"]
    assert system["FileSystemTypeVersion"] == "2.15"
    lustre = system["LustreConfiguration"]
    assert (lustre["DeploymentType"], lustre["PerUnitStorageThroughput"], lustre["DataCompressionType"]) == (
        *("PERSISTENT_2", 250, "LZ4"),
    )
    for kind, peer in (("Ingress", "SourceSecurityGroupId"), ("Egress", "DestinationSecurityGroupId")):
        rules = [item["Properties"] for item in full.of_type(STACK, f"AWS::EC2::SecurityGroup{kind}").values()]
        assert {(rule["FromPort"], rule["ToPort"]) for rule in rules} == {(988, 988), (1018, 1023)}
        assert len({json.dumps([rule["GroupId"], rule[peer]]) for rule in rules}) == 3
    link = full.one(STACK, "AWS::FSx::DataRepositoryAssociation")["Properties"]
    assert link["FileSystemPath"] == "/datasets"


def test_scratch_file_system_has_neither_key_nor_throughput(synthesis: Synthesis) -> None:
    scratch = {"zone": "b", "deployment_type": "SCRATCH_2", "import_datasets": False}
    made = synthesis.variant("scratch", {"storage.lustre": scratch})
    system = made.one(STACK, "AWS::FSx::FileSystem")["Properties"]
    assert "KmsKeyId" not in system and "PerUnitStorageThroughput" not in system["LustreConfiguration"]
    assert "IsolatedB" in json.dumps(system["SubnetIds"])
    assert not made.of_type(STACK, "AWS::FSx::DataRepositoryAssociation")


def test_node_document_has_the_volumes_and_the_role_may_attach_them(full: Assembly) -> None:
    document = node_document(full)
    assert [(volume.kind, volume.mount, volume.read_only) for volume in document.volumes] == [
        ("dataset", "/mnt/dataset", True),
        ("checkpoint", "/mnt/checkpoints", False),
        ("shared", "/mnt/shared", True),
    ]
    assert document.lustre is not None
    assert (document.lustre.mount, document.lustre.stripe_count) == ("/mnt/lustre", -1)
    statements = full.statements("TrainingStack", node_role(full))
    assert len(statements["AttachVolumes"]["Resource"]) == 2
    assert statements["AttachToNodes"]["Condition"] == {
        "StringEquals": {"aws:ResourceTag/trainstack:deployment": "demo"}
    }
    assert statements["GrantKeyToVolumes"]["Condition"]["Bool"] == {"kms:GrantIsForAWSResource": "true"}


def test_volume_copies_are_optional_and_limited_by_tag(full: Assembly, synthesis: Synthesis) -> None:
    asks = synthesis.of("single-node-8-gpu")
    assert [volume.restored_elsewhere for volume in node_document(asks).volumes] == [True]
    assert not any(volume.restored_elsewhere for volume in node_document(full).volumes)
    statements = asks.statements("TrainingStack", node_role(asks))
    without = full.statements("TrainingStack", node_role(full))
    more = statements.keys() - without.keys()
    assert {"ReadSnapshots", "CreateCopies", "TakeSnapshots", "DeleteOwnSnapshots"} <= more
    for sid in more - {"FindSnapshots", "SnapshotVolume"}:
        assert statements[sid]["Condition"], f"{sid} applies to everything in the account"
    name = {"aws:ResourceTag/trainstack:snapshots": "single-node-8-gpu"}
    assert statements["ReadSnapshots"]["Condition"] == {"StringEquals": name}
    taken = {**name, "aws:ResourceTag/trainstack:taken-by": "supervisor"}
    assert statements["DeleteOwnSnapshots"]["Condition"] == {"StringEquals": taken}


def test_image_repository(synthesis: Synthesis) -> None:
    """Sources (2026-11): https://docs.aws.amazon.com/AmazonECR/latest/userguide/LifecyclePolicies.html and
    https://docs.aws.amazon.com/AmazonECR/latest/userguide/repository-policy-examples.html"""
    role = "arn:aws:iam::111122223333:role/cluster-nodes"
    base = {"base": "debian:bookworm-slim", "keep_images": 7, "pull_roles": [role]}
    made = synthesis.variant("images", {"image": base})
    repository = made.one(STACK, "AWS::ECR::Repository")
    assert (repository["DeletionPolicy"], repository["UpdateReplacePolicy"]) == KEPT
    properties = repository["Properties"]
    assert properties["ImageTagMutability"] == "IMMUTABLE"
    assert properties["ImageScanningConfiguration"] == {"ScanOnPush": True}
    assert properties["EncryptionConfiguration"]["EncryptionType"] == "KMS"
    (key,) = made.of_type(STACK, "AWS::KMS::Key")
    assert properties["EncryptionConfiguration"]["KmsKey"] == {"Fn::GetAtt": [key, "Arn"]}
    (rule,) = json.loads(properties["LifecyclePolicy"]["LifecyclePolicyText"])["rules"]
    assert rule["selection"] == {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 7}
    assert rule["action"] == {"type": "expire"}
    (statement,) = properties["RepositoryPolicyText"]["Statement"]
    assert statement["Principal"] == {"AWS": role} and statement["Effect"] == "Allow"
    pulls = {"ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"}
    assert set(statement["Action"]) == pulls


def test_only_a_file_with_an_image_has_a_repository(synthesis: Synthesis, demo: Assembly) -> None:
    elsewhere = {"base": "debian:bookworm-slim", "repository": "registry.example.com/trainer"}
    other = synthesis.variant("images-elsewhere", {"image": elsewhere})
    private = synthesis.variant("images-private", {"image": {"base": "debian:bookworm-slim"}})
    assert not demo.of_type(STACK, "AWS::ECR::Repository") and not other.of_type(STACK, "AWS::ECR::Repository")
    assert "RepositoryPolicyText" not in private.one(STACK, "AWS::ECR::Repository")["Properties"]
