"""The table of causes against messages that AWS has returned, quoted from its documents and from public reports."""

from __future__ import annotations

import pytest

from stacks.functions.run_controller.causes import CASES, REMEDIES, Cause, classify, first_to_remove

KARPENTER = "https://github.com/aws/karpenter-provider-aws/pull/7998"
EVENTS = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_EventInformation.html"
CODES = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"
ENDING = "Launching EC2 instance failed."
UNHEALTHY = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason:"

RECORDED = [
    (
        Cause.CAPACITY,
        f"There is no Spot capacity available that matches your request. {ENDING}",
        "https://github.com/aws/aws-parallelcluster/issues/1944",
    ),
    (
        Cause.CAPACITY,
        "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request "
        f"configuration. Please adjust your request and try again. {ENDING}",
        "https://github.com/mludvig/aws-ethereum-miner/issues/23",
    ),
    (
        Cause.CAPACITY,
        "We currently do not have sufficient m4.4xlarge capacity in the Availability Zone you requested "
        "(ap-northeast-1d). Our system will be working on provisioning additional capacity. You can currently get "
        "m4.4xlarge capacity by not specifying an Availability Zone in your request or choosing ap-northeast-1c.",
        "https://github.com/hashicorp/terraform-provider-aws/issues/1496",
    ),
    (
        Cause.CAPACITY,
        "spotFleetRequestConfigurationInvalid: p2.xlarge, ami-0e02647cb673cb89a, Linux/UNIX: We currently do not have "
        "sufficient p2.xlarge capacity in the Availability Zone you requested",
        "https://github.com/c6fc/npk/issues/70",
    ),
    (
        Cause.QUOTA,
        f"Max spot instance count exceeded. {ENDING}",
        "https://github.com/aws-deepracer-community/deepracer-on-the-spot/issues/55",
    ),
    (
        Cause.QUOTA,
        "You have requested more instances (7) than your current instance limit of 6 allows for the specified "
        f"instance type. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment. {ENDING}",
        "https://github.com/kubernetes/autoscaler/issues/1263",
    ),
    (
        Cause.QUOTA,
        "You have requested more vCPU capacity than your current vCPU limit of 1000 allows for the instance bucket "
        "that the specified instance type belongs to.",
        "https://github.com/ITISFoundation/osparc-simcore/pull/5408",
    ),
    (Cause.QUOTA, "spotInstanceCountLimitExceeded", EVENTS),
    (Cause.QUOTA, "VcpuLimitExceeded", CODES),
    (
        Cause.PRICE,
        "Could not launch Spot Instances. SpotMaxPriceTooLow - Your Spot request price of 0.24156000000000002 is lower "
        f"than the minimum required Spot request fulfillment price of 0.6034. {ENDING}",
        "https://github.com/redhat-developer/mapt/issues/576",
    ),
    (
        Cause.PRICE,
        "price-too-low: Your Spot request price of 0.1294 is lower than the minimum required Spot request fulfillment "
        "price of 0.148.",
        "https://github.com/hashicorp/packer/issues/7808",
    ),
    (Cause.PRICE, "fleetProgressHalted", EVENTS),
    (Cause.PRICE, "launchSpecUnusable", EVENTS),
    (
        Cause.PERMISSION,
        f"{UNHEALTHY} Client.InternalError: Client error on launch",
        "https://github.com/terraform-aws-modules/terraform-aws-autoscaling/issues/109",
    ),
    (
        Cause.PERMISSION,
        f"{UNHEALTHY} Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state",
        "https://github.com/hashicorp/terraform-provider-aws/issues/39904",
    ),
    (
        Cause.PERMISSION,
        "One or more of the attached Amazon EBS volumes are encrypted with an inaccessible AWS KMS key.",
        "https://github.com/aws/aws-cdk/issues/34491",
    ),
    (
        Cause.PERMISSION,
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted: The provided credentials do not have permission to create "
        "the service-linked role for EC2 Spot Instances.",
        KARPENTER,
    ),
    (
        Cause.PERMISSION,
        "You are not authorized to perform this operation. Encoded authorization failure message: JUmMphVKvdVLB83WorEP",
        "https://github.com/ray-project/ray/issues/3190",
    ),
    (Cause.PERMISSION, "iamFleetRoleInvalid", EVENTS),
    (
        Cause.CONFIGURATION,
        "InvalidSubnetID.NotFound: The subnet ID 'subnet-ed4ddcb6' does not exist",
        "https://github.com/terraform-aws-modules/terraform-aws-ec2-instance/issues/20",
    ),
    (
        Cause.CONFIGURATION,
        "AMI ami-327f5352 is invalid: The image id '[ami-327f5352]' does not exist",
        "https://github.com/benishak/lamp-aws-cloudformation/issues/1",
    ),
    (
        Cause.CONFIGURATION,
        "Could not launch Spot Instances. InvalidFleetConfiguration - Your requested instance type (p3.8xlarge) is not "
        f"supported in your requested Availability Zone (us-east-2c). {ENDING}",
        "https://github.com/mludvig/aws-ethereum-miner/issues/23",
    ),
    (
        Cause.CONFIGURATION,
        "launchSpecUnusable: p2.xlarge, ami-0e02647cb673cb89a, Linux/UNIX, eu-central-1c, requested instance type is "
        "not supported in the requested Availability Zone",
        "https://github.com/c6fc/npk/issues/70",
    ),
    (Cause.CAPACITY, "capacity-oversubscribed", "https://github.com/AlexsLemonade/refinebio/issues/528"),
    (Cause.PRICE, "MaxSpotFleetRequestPriceExceeded", CODES),
    (Cause.CONFIGURATION, "MissingParameter", CODES),
    (Cause.CONFIGURATION, "InsufficientFreeAddressesInSubnet", CODES),
    (Cause.CONFIGURATION, "InvalidPlacementGroup.Unknown", CODES),
    (Cause.CONFIGURATION, "allLaunchSpecsTemporarilyBlacklisted", EVENTS),
]


@pytest.mark.parametrize(
    ("cause", "message", "source"), RECORDED, ids=[f"{c}-{n}" for n, (c, _, _) in enumerate(RECORDED)]
)
def test_recorded_message_has_its_cause(cause: Cause, message: str, source: str) -> None:
    assert classify(message) == cause, source


def test_every_row_of_the_table_decides_a_recorded_message() -> None:
    assert {next(case for case in CASES if case.matches(message)) for _, message, _ in RECORDED} == set(CASES)


def test_a_message_that_no_row_matches_is_unknown() -> None:
    assert classify("Something new. Launching EC2 instance failed.") is Cause.UNKNOWN
    assert classify("") is Cause.UNKNOWN


def test_every_cause_has_a_remedy() -> None:
    assert REMEDIES.keys() == set(Cause)


def test_the_cause_that_only_a_user_can_remove_precedes_capacity() -> None:
    capacity, quota, newer_quota = (
        "no Spot capacity available",
        "Max spot instance count exceeded (1)",
        "Max spot instance count exceeded (2)",
    )
    assert first_to_remove([capacity, newer_quota, quota]) == (Cause.QUOTA, newer_quota)
    assert first_to_remove([capacity]) == (Cause.CAPACITY, capacity)
    assert first_to_remove([]) is None
