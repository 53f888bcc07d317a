"""StorageStack: private, encrypted, and hard to lose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Assembly, Synthesis

STACK = "StorageStack"


def buckets(assembly: Assembly) -> dict[str, dict[str, Any]]:
    return assembly.of_type(STACK, "AWS::S3::Bucket")


@pytest.mark.parametrize("deletion", ["single-gpu", "demo"])
def test_data_is_retained_unless_both_keys_say_otherwise(synthesis: Synthesis, deletion: str) -> None:
    """The demo's file says destroy, and nobody said -c allow-destroy=true."""
    for kind in ("AWS::S3::Bucket", "AWS::KMS::Key"):
        for item in synthesis.of(deletion).of_type(STACK, kind).values():
            assert item["DeletionPolicy"] == "Retain"
            assert item["UpdateReplacePolicy"] == "Retain"


def test_two_keys_destroy(synthesis: Synthesis) -> None:
    both = synthesis.variant("destroy", {"storage.deletion": "destroy"}, **{"allow-destroy": "true"})
    assert {item["DeletionPolicy"] for item in buckets(both).values()} == {"Delete"}
    one = synthesis.variant("retain", {"storage.deletion": "retain"}, **{"allow-destroy": "true"})
    assert {item["DeletionPolicy"] for item in buckets(one).values()} == {"Retain"}


def test_termination_protection_follows_the_config(synthesis: Synthesis) -> None:
    manifest = json.loads((synthesis.of("single-gpu").directory / "manifest.json").read_text())
    assert manifest["artifacts"]["StorageStack"]["properties"]["terminationProtection"] is True


def test_no_bucket_is_public(demo: Assembly) -> None:
    for item in buckets(demo).values():
        assert set(item["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}


def test_every_bucket_refuses_what_is_not_tls(demo: Assembly) -> None:
    refusing = set()
    for item in demo.of_type(STACK, "AWS::S3::BucketPolicy").values():
        for statement in item["Properties"]["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Deny" and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}:
                refusing.add(item["Properties"]["Bucket"]["Ref"])
    assert refusing == set(buckets(demo))


def test_data_is_encrypted_with_the_own_key(demo: Assembly) -> None:
    (key,) = demo.of_type(STACK, "AWS::KMS::Key")
    for name in ("Datasets", "Checkpoints"):
        (item,) = (item for logical_id, item in buckets(demo).items() if logical_id.startswith(name))
        (rule,) = item["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == {"Fn::GetAtt": [key, "Arn"]}
        assert rule["BucketKeyEnabled"] is True


def test_the_key_rotates_and_admits_auto_scaling_by_condition(demo: Assembly) -> None:
    key = demo.one(STACK, "AWS::KMS::Key")["Properties"]
    assert key["EnableKeyRotation"] is True
    for statement in key["KeyPolicy"]["Statement"]:
        if statement["Principal"] == {"AWS": "*"}:
            assert "aws:PrincipalArn" in statement["Condition"]["ArnEquals"]
            assert statement["Condition"]["StringEquals"] == {"kms:CallerAccount": {"Ref": "AWS::AccountId"}}


def test_checkpoints_tell_the_event_bus(demo: Assembly) -> None:
    (item,) = (item for name, item in buckets(demo).items() if name.startswith("Checkpoints"))
    events = item["Properties"]["NotificationConfiguration"]
    assert events == {"EventBridgeConfiguration": {"EventBridgeEnabled": True}}


def test_abandoned_uploads_do_not_pile_up(demo: Assembly) -> None:
    for item in buckets(demo).values():
        rules = item["Properties"]["LifecycleConfiguration"]["Rules"]
        assert any("AbortIncompleteMultipartUpload" in rule for rule in rules)
