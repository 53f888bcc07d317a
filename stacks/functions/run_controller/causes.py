"""Reasons why a run is not training, and the table that maps AWS's error messages to them.

The run controller logs the cause, and `trainstack why` prints it with its remedy. Each cause in TOO_FEW_NODES has an
alarm.
This module imports only the standard library because it is part of the run controller's Lambda asset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """The reason why a run is not training. Causes that require user action precede causes that resolve themselves."""

    PERMISSION = "permission"
    CONFIGURATION = "configuration"
    QUOTA = "quota"
    DATASET_MISSING = "dataset_missing"
    BOOT_FAILURE = "boot_failure"
    SPEND_LIMIT = "spend_limit"
    PRICE = "price"
    CAPACITY = "capacity"
    GANG_INCOMPLETE = "gang_incomplete"
    UNKNOWN = "unknown"
    TRAINING_FAILED = "training_failed"
    STOPPED = "stopped"
    FINISHED = "finished"


TOO_FEW_NODES: tuple[Cause, ...] = tuple(Cause)[: tuple(Cause).index(Cause.UNKNOWN) + 1]
"""The causes for a run that should train but has too few nodes. The other causes are final states, and states that a
user requested."""


REMEDIES: Mapping[Cause, str] = {
    Cause.PERMISSION: (
        "allow the launch in the account's policies, service control policies and key policy; "
        "`python -m stacks check --aws FILE` repeats the launch as a dry run"
    ),
    Cause.CONFIGURATION: "correct the resource or setting that the message names, and deploy again",
    Cause.QUOTA: "request a higher quota; `python -m stacks check --aws FILE` prints its code and the required value",
    Cause.DATASET_MISSING: "upload the dataset; the run then starts without another deploy",
    Cause.BOOT_FAILURE: "correct the error in the last failure report, then deploy again or request a retry",
    Cause.SPEND_LIMIT: "raise the limit in the deployment file and deploy again; the run resumes from its checkpoint",
    Cause.PRICE: "raise or remove capacity.max_price_usd, or add instance types or zones",
    Cause.CAPACITY: "wait, add instance types or zones, or use an on-demand base",
    Cause.GANG_INCOMPLETE: "wait for the remaining nodes, or lower capacity.min_nodes",
    Cause.UNKNOWN: "read the message, and the fleet's history in the EC2 console",
    Cause.TRAINING_FAILED: "correct the error and deploy again, or repeat the run with `trainstack retry`",
    Cause.STOPPED: "run `trainstack resume`",
    Cause.FINISHED: "none is needed; to train again, change training.run and deploy",
}
"""The remedy for each cause, in the imperative."""


@dataclass(frozen=True)
class Case:
    """A row of the table: messages that contain a match for `pattern` (case-insensitive) have this cause."""

    cause: Cause
    pattern: str

    def matches(self, message: str) -> bool:
        """Return True if the pattern occurs in the message."""
        return re.search(self.pattern, message, re.IGNORECASE) is not None


# EC2's error codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html. Reasons of terminated
# instances: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html. Fleet events:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_EventInformation.html. Scaling activities quote the error's
# message, with its code only for a mixed instances policy: reports of such messages are in
# tests/stacks/run_controller/test_causes.py. (All 2026-11.)
CASES: tuple[Case, ...] = (
    Case(Cause.PERMISSION, r"UnauthorizedOperation|AuthFailure|AccessDenied|not authorized to perform|NotPermitted"),
    Case(Cause.PERMISSION, r"service.linked role|iamFleetRoleInvalid|OptInRequired|PendingVerification"),
    # A launch that cannot use a volume's key: https://docs.aws.amazon.com/autoscaling/ec2/userguide/
    # ts-as-instancelaunchfailure.html#ts-as-instancelaunchfailure-12
    Case(Cause.PERMISSION, r"Client\.InternalError|InvalidKMSKey|KMSKeyNotAccessible|inaccessible AWS KMS key"),
    Case(Cause.QUOTA, r"LimitExceeded|CountExceeded|count exceeded|current (vCPU|instance) limit"),
    Case(Cause.PRICE, r"SpotMaxPriceTooLow|price-too-low|minimum required Spot request fulfillment price"),
    Case(Cause.PRICE, r"MaxSpotFleetRequestPriceExceeded|maximum total price of the fleet"),
    Case(
        Cause.CAPACITY,
        r"Insufficient(Instance|Host|ReservedInstance)?Capacity|Unfulfillable|Unable to fulfill capacity",
    ),
    Case(Cause.CAPACITY, r"not have sufficient .*capacity|no Spot capacity available|ReservationCapacityExceeded"),
    Case(Cause.CAPACITY, r"capacity-(not-available|oversubscribed)|Server\.SpotInstance(Termination|Shutdown)"),
    Case(Cause.CONFIGURATION, r"not supported in (your|the) requested Availability Zone|InsufficientFreeAddresses"),
    Case(Cause.CONFIGURATION, r"does not exist|NotFound|InvalidAMIID|Invalid\w+(ID|Id|Value|Combination)\b"),
    Case(Cause.CONFIGURATION, r"InvalidFleetConfiguration|InvalidPlacementGroup|InvalidLaunchTemplate|Unsupported"),
    Case(Cause.CONFIGURATION, r"MissingParameter|InvalidBlockDeviceMapping|InvalidSnapshot|is (invalid|not valid)"),
    # Events without a message from the list above. "Not valid" includes a price below the spot price.
    Case(Cause.PRICE, r"launchSpecUnusable|fleetProgressHalted"),
    Case(Cause.CONFIGURATION, r"spotFleetRequestConfigurationInvalid|LaunchSpecs?TemporarilyBlacklisted"),
)
"""The table. The first matching row applies, so messages precede the general codes that AWS adds to them."""


def classify(message: str) -> Cause:
    """Return the cause for a message from AWS, or UNKNOWN if no row matches."""
    return next((case.cause for case in CASES if case.matches(message)), Cause.UNKNOWN)


def first_to_remove(messages: Iterable[str]) -> tuple[Cause, str] | None:
    """Return the cause to resolve first and its newest message, or None if there are no messages.

    Args:
        messages: AWS's messages, newest first. Launches in several pools can fail for different reasons.
    """
    found: dict[Cause, str] = {}
    for message in messages:
        found.setdefault(classify(message), message)
    return next(((cause, found[cause]) for cause in Cause if cause in found), None)
