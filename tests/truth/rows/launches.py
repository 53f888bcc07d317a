"""EC2 and Auto Scaling: images, user data, volumes, overrides, tags in instance metadata, and keys of volumes.

Most of the sources are reports with AWS's messages; the limits come from AWS's documentation and botocore's models.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.truth.row import Account, Row

ISSUES = "https://github.com/"
NO_IMAGE = f"{ISSUES}brikis98/terraform-up-and-running-code/issues/41"
TEMPLATE_DATA = f"{ISSUES}github-aws-runners/terraform-aws-github-runner/issues/3700"
LAUNCH_DATA = f"{ISSUES}supergiant/capacity/issues/148"
IOPS_RATIO = f"{ISSUES}rocicorp/mono/pull/4410"
THROUGHPUT_RATIO = f"{ISSUES}runs-on/runs-on/issues/260"
THROUGHPUT_TYPE = f"{ISSUES}runs-on/runs-on/issues/426"
THROUGHPUT = f"{ISSUES}gardener/gardener-extension-provider-aws/pull/590"
RANGES = "botocore ec2 EbsBlockDevice.Iops, Throughput and VolumeSize (documentation)"
GROUP_TYPES = f"{ISSUES}terraform-aws-modules/terraform-aws-eks/issues/368"
FLEET_POOLS = f"{ISSUES}github-aws-runners/terraform-aws-github-runner/issues/2904"
FLEET_ZONES = f"{ISSUES}github-aws-runners/terraform-aws-github-runner/issues/5297"
TAG_KEYS = f"{ISSUES}seek-oss/aec/pull/411"
TAGS_PAGE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html"
KEY_STATE = f"{ISSUES}hashicorp/terraform-provider-aws/issues/39904"
KEY_POLICY = "https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html"
LINKED_ROLE = "arn:aws:iam::123456789012:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
ZONE = "us-east-1a"
INVALID = {"code": "InvalidParameterValue", "status": 400}
DRY = {"code": "DryRunOperation", "status": 412}


@cache
def image(account: Account) -> str:
    return str(account.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"])


def subnet(account: Account) -> str:
    found = account.client("ec2").describe_subnets(Filters=[{"Name": "availability-zone", "Values": [ZONE]}])["Subnets"]
    return str(next(one["SubnetId"] for one in found if one["DefaultForAz"]))


def launch(**more: Any) -> Callable[[Account], Any]:
    """Return a call that checks the launch of an instance without launching it."""
    return lambda a: a.client("ec2").run_instances(
        **{"ImageId": image(a), "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1, "DryRun": True, **more}
    )


def template(account: Account, **data: Any) -> dict[str, str]:
    """Create a launch template and return a reference to it."""
    name = f"truth-{uuid.uuid4().hex}"
    account.client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    return {"LaunchTemplateName": name, "Version": "$Latest"}


def user_data(size: int) -> str:
    return base64.b64encode(b"#!/bin/sh\n".ljust(size, b"#")).decode()


def version(size: int) -> Callable[[Account], Any]:
    return lambda a: a.client("ec2").create_launch_template_version(
        LaunchTemplateName=template(a, InstanceType="m5.large")["LaunchTemplateName"],
        LaunchTemplateData={"UserData": user_data(size)},
    )


def volume(**settings: Any) -> Callable[[Account], Any]:
    return lambda a: a.client("ec2").create_volume(
        **{"AvailabilityZone": ZONE, "Size": 100, "VolumeType": "gp3", **settings}
    )


def modified(**settings: Any) -> Callable[[Account], Any]:
    return lambda a: a.client("ec2").modify_volume(VolumeId=volume()(a)["VolumeId"], **settings)


def mapped(**ebs: Any) -> dict[str, Any]:
    found = {"VolumeType": "gp3", "VolumeSize": 100, **ebs}
    return {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": found}]}


def group(*types: str) -> Callable[[Account], Any]:
    """Return a call that creates a group whose overrides have these types."""

    def send(account: Account) -> Any:
        reference = template(account, ImageId=image(account), InstanceType="m5.large")
        overrides = [{"InstanceType": one} for one in types]
        return account.client("autoscaling").create_auto_scaling_group(
            AutoScalingGroupName=reference["LaunchTemplateName"], MinSize=0, MaxSize=1,
            VPCZoneIdentifier=subnet(account),
            MixedInstancesPolicy={"LaunchTemplate": {"LaunchTemplateSpecification": reference, "Overrides": overrides}},
        )  # fmt: skip

    return send


def fleet(*pools: tuple[str, str]) -> Callable[[Account], Any]:
    """Return a call that creates a fleet with overrides of these types, in new subnets of these zones."""

    def send(account: Account) -> Any:
        ec2, iam = account.client("ec2"), account.client("iam")
        if not any(one["RoleName"] == "AWSServiceRoleForEC2Fleet" for one in iam.list_roles()["Roles"]):
            iam.create_service_linked_role(AWSServiceName="ec2fleet.amazonaws.com")
        vpc = ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
        overrides = [
            {"InstanceType": kind, "SubnetId": ec2.create_subnet(
                VpcId=vpc, CidrBlock=f"10.7.{number}.0/24", AvailabilityZone=f"us-east-1{zone}")["Subnet"]["SubnetId"]}
            for number, (kind, zone) in enumerate(pools)
        ]  # fmt: skip
        reference = template(account, ImageId=image(account))
        return ec2.create_fleet(
            Type="maintain",
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": reference, "Overrides": overrides}],
            TargetCapacitySpecification={"TotalTargetCapacity": 0, "DefaultTargetCapacityType": "on-demand"},
        )

    return send


def tagged(key: str, option: str = "enabled") -> Callable[[Account], Any]:
    return launch(
        MetadataOptions={"InstanceMetadataTags": option},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": key, "Value": "v"}]}],
    )


def encrypted(*statements: dict[str, Any]) -> Callable[[Account], Any]:
    """Return a call that lets a group launch an instance with a volume whose key policy has these statements.

    It returns the status of the first activity that has ended, and its message.
    """

    def send(account: Account) -> Any:
        owner = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "kms:*",
                 "Resource": "*"}  # fmt: skip
        policy = json.dumps({"Version": "2012-10-17", "Statement": [owner, *statements]})
        key = account.client("kms").create_key(Policy=policy)["KeyMetadata"]["Arn"]
        reference = template(
            account, ImageId=image(account), InstanceType="m5.large", **mapped(Encrypted=True, KmsKeyId=key)
        )
        client, name = account.client("autoscaling"), reference["LaunchTemplateName"]
        client.create_auto_scaling_group(
            AutoScalingGroupName=name, MinSize=1, MaxSize=1, VPCZoneIdentifier=subnet(account), LaunchTemplate=reference
        )
        try:
            while True:
                found = client.describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
                ended = [one for one in reversed(found) if "EndTime" in one]
                if ended:
                    return ended[0]["StatusCode"], ended[0].get("StatusMessage", "")
        finally:
            client.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)

    return send


def for_linked_role(*actions: str, **conditions: Any) -> dict[str, Any]:
    by = {"ArnEquals": {"aws:PrincipalArn": LINKED_ROLE}, **conditions}
    return {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": [*actions], "Resource": "*", "Condition": by}


USE = for_linked_role("kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey")
GRANT = for_linked_role("kms:CreateGrant", Bool={"kms:GrantIsForAWSResource": "true"})
ROWS = [
    Row("launch of an image that does not exist", launch(ImageId="ami-0c55b159cbfafe1f0"), NO_IMAGE,
        "InvalidAMIID.NotFound", "The image id '[ami-0c55b159cbfafe1f0]' does not exist", 400),
    Row("launch of an image that exists", launch(), NO_IMAGE, **DRY),
    Row("launch template with user data of 16,385 bytes", lambda a: template(a, UserData=user_data(16_385)),
        TEMPLATE_DATA, "InvalidUserData.Malformed", "User data is limited to 16384 bytes", 400),
    Row("launch template with user data of 16,384 bytes", lambda a: template(a, UserData=user_data(16_384)),
        TEMPLATE_DATA),
    Row("version of a launch template with user data of 16,385 bytes", version(16_385),
        f"{ISSUES}hashicorp/terraform-provider-aws/pull/49234", "InvalidUserData.Malformed", status=400),
    Row("version of a launch template with user data of 16,384 bytes", version(16_384),
        f"{ISSUES}hashicorp/terraform-provider-aws/pull/49234"),
    Row("launch with user data of 16,385 bytes", lambda a: launch(UserData="#!/bin/sh\n".ljust(16_385, "#"))(a),
        LAUNCH_DATA, words="User data is limited to 16384 bytes", **INVALID),
    Row("launch with user data of 16,384 bytes", lambda a: launch(UserData="#!/bin/sh\n".ljust(16_384, "#"))(a),
        LAUNCH_DATA, **DRY),
    Row("gp3 volume with 750 IOPS per GiB", volume(Size=20, Iops=15_000), IOPS_RATIO,
        words="Iops to volume size ratio of 750.000000 is too high; maximum is 500", **INVALID),
    Row("gp3 volume with 500 IOPS per GiB", volume(Size=30, Iops=15_000), IOPS_RATIO),
    Row("gp3 volume of 1 GiB with 3,000 IOPS", volume(Size=1, Iops=3_000),
        "https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html"),
    Row("gp3 volume with 1,000 MiB/s and 3,000 IOPS", volume(Throughput=1_000, Iops=3_000), THROUGHPUT_RATIO,
        words="Throughput (MiBps) to iops ratio of 0.333333 is too high; maximum is 0.250000 MiBps per iops",
        **INVALID),
    Row("gp3 volume with 1,000 MiB/s and 4,000 IOPS", volume(Throughput=1_000, Iops=4_000), THROUGHPUT_RATIO),
    Row("gp3 volume with 750 MiB/s and the default IOPS", volume(Throughput=750), THROUGHPUT_RATIO),
    Row("gp3 volume with 751 MiB/s and the default IOPS", volume(Throughput=751), THROUGHPUT_RATIO, **INVALID),
    Row("gp3 volume with 2,001 MiB/s", volume(Throughput=2_001, Iops=8_004), THROUGHPUT,
        words="Volume throughput of 2001", **INVALID),
    Row("gp3 volume with the maximum performance", volume(Size=160, Throughput=2_000, Iops=80_000), RANGES),
    Row("gp3 volume with 80,001 IOPS", volume(Size=200, Iops=80_001), RANGES, **INVALID),
    Row("gp3 volume with 2,999 IOPS", volume(Iops=2_999), RANGES, **INVALID),
    Row("gp3 volume of 65,537 GiB", volume(Size=65_537), RANGES, **INVALID),
    Row("gp2 volume with a throughput", volume(VolumeType="gp2", Throughput=300), THROUGHPUT_TYPE,
        "InvalidParameterCombination", "throughput can only be specified for volumeType gp3", 400),
    Row("launch with a gp3 volume with 750 IOPS per GiB", launch(**mapped(VolumeSize=20, Iops=15_000)), IOPS_RATIO,
        words="Iops to volume size ratio of 750.000000 is too high; maximum is 500", **INVALID),
    Row("launch with a gp3 volume within its limits", launch(**mapped(VolumeSize=30, Iops=15_000)), IOPS_RATIO, **DRY),
    Row("launch template with a gp3 volume beyond its limits",
        lambda a: template(a, **mapped(VolumeSize=20, Iops=15_000)),
        "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateLaunchTemplate.html"),
    Row("gp3 volume changed to 60,000 IOPS of 100 GiB", modified(Iops=60_000), IOPS_RATIO,
        words="Iops to volume size ratio of 600.000000 is too high; maximum is 500", **INVALID),
    Row("gp3 volume changed to 60,000 IOPS and 120 GiB", modified(Iops=60_000, Size=120), IOPS_RATIO),
    Row("gp3 volume changed to gp2", modified(VolumeType="gp2"),
        "https://docs.aws.amazon.com/ebs/latest/userguide/modify-volume-requirements.html"),
    Row("group whose overrides repeat a type", group("t3.large", "m5.large", "t3.large"), GROUP_TYPES,
        "ValidationError", "Cannot add same instance type override more than once. Remove these duplicates from the "
        "request and try again: [t3.large]", 400),
    Row("group whose overrides have different types", group("t3.large", "m5.large"), GROUP_TYPES),
    Row("fleet whose overrides repeat a type in a zone", fleet(("m5.large", "a"), ("m5.large", "a")), FLEET_ZONES,
        "InvalidFleetConfig", "The fleet configuration contains duplicate instance pools.", 400),
    Row("fleet whose overrides have different zones", fleet(("m5.large", "a"), ("m5.large", "b")), FLEET_ZONES),
    Row("fleet whose overrides have different types", fleet(("m5.large", "a"), ("c5.large", "a")), FLEET_POOLS),
    *(Row(f"tag {key} in the instance metadata", tagged(key), TAG_KEYS,
          words=f"'{key}' is not a valid tag key. Tag keys must match pattern", **INVALID)
      for key in ("Patch Group", "k8s.io/cluster", ".", "..", "_index")),
    *(Row(f"tag {key} in the instance metadata", tagged(key), TAGS_PAGE, **DRY)
      for key in ("team", "a-b+c=d,e.f_g:h@i", "_index2")),
    Row("tag with a space that the metadata does not include", tagged("Patch Group", "disabled"), TAG_KEYS, **DRY),
    Row("encrypted volume whose key policy does not allow the service-linked role", encrypted(), KEY_STATE,
        holds=lambda found: found[0] != "Successful" and found[1].startswith(
            "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: "
            "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state")),
    Row("encrypted volume whose key policy does not allow grants", encrypted(USE), KEY_POLICY,
        holds=lambda found: "InvalidKMSKey" in found[1]),
    Row("encrypted volume whose key policy allows the service-linked role", encrypted(USE, GRANT), KEY_POLICY,
        holds=lambda found: found == ("Successful", "")),
]  # fmt: skip
