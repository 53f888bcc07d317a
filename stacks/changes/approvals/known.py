"""Types for the tables of recognized changes, and values that several tables share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stacks.changes.approvals.rules import Rule, tags

Presence = Literal["passes", "asks", "with its subnet", "in its own network"]
"""Whether an added or removed resource is accepted.

"with its subnet": accepted if the new side omits its subnet. "in its own network": accepted if the templates contain
its VPC. In another VPC, nodes may then reach the service through an endpoint without the removed endpoint's policy.
"""


@dataclass(frozen=True)
class Known:
    """Recognized changes to a resource type."""

    properties: Mapping[str, Rule] = field(default_factory=dict)
    added: Presence = "asks"
    removed: Presence = "asks"


SUBNET, VPC, GROUP, TOPIC = "AWS::EC2::Subnet", "AWS::EC2::VPC", "AWS::EC2::SecurityGroup", "AWS::SNS::Topic"
KEY = "AWS::KMS::Key"
TAGS: Mapping[str, Rule] = {"Tags": tags}
