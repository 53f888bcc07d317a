"""The instance metadata service, as a running instance sees it.

The values are those of AWS's mock of the service, with the IDs of the launched instance.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.truth.row import Account, Row
from tests.truth.rows.launches import ZONE, image, subnet

MOCK = "https://github.com/aws/amazon-ec2-metadata-mock/blob/0aa68f8/pkg/config/defaults/aemm-metadata-default-values.json#"
CATEGORIES = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html"
ACCESS = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html"
TAGS = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html"
SCRIPT = '#!/bin/sh\necho "service=$AWS_EC2_METADATA_SERVICE_ENDPOINT"\nsleep 1000\n'
TTL, TOKEN = "X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"


@dataclass(frozen=True)
class Node:
    """A running instance.

    Attributes:
        url: Address of its metadata service.
        shown: The instance as DescribeInstances shows it.
    """

    url: str
    shown: Mapping[str, Any]

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, str]:
        """Return the status and the body of a response; header names have underscores instead of hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            request = urllib.request.Request(f"{self.url}latest/{path}", method=method, headers=named)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def get(self, path: str) -> tuple[int, str]:
        token = self.ask("PUT", "api/token", **{TTL: "60"})[1]
        return self.ask("GET", path, **{TOKEN: token})


@cache
def node(account: Account) -> Node:
    """Launch an instance, wait until its script has run, and return it."""
    ec2 = account.client("ec2")
    (launched,) = ec2.run_instances(
        ImageId=image(account), InstanceType="m5.large", MinCount=1, MaxCount=1, SubnetId=subnet(account),
        UserData=SCRIPT, MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "test-instance"}]}],
        BlockDeviceMappings=[{"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 1, "VolumeType": "gp3"}}],
    )["Instances"]  # fmt: skip
    identity = launched["InstanceId"]
    ec2.get_waiter("instance_running").wait(InstanceIds=[identity], WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})
    found = None
    while found is None:
        found = re.search(r"service=(\S+)", ec2.get_console_output(InstanceId=identity)["Output"])
    return Node(found[1], ec2.describe_instances(InstanceIds=[identity])["Reservations"][0]["Instances"][0])


def value(path: str, expected: Callable[[Mapping[str, Any]], str], source: str = "") -> Row:
    """Return the row of a path whose value follows from the instance's description."""

    def send(account: Account) -> Any:
        one = node(account)
        mac = one.shown["NetworkInterfaces"][0]["MacAddress"]
        return one.get(f"meta-data/{path.format(mac=mac)}"), (200, expected(one.shown))

    name = path.replace("{mac}", "MAC")
    return Row(f"metadata {name}", send, source or MOCK + name, holds=lambda found: found[0] == found[1])


def absent(path: str, source: str = CATEGORIES) -> Row:
    return Row(f"no metadata {path}", lambda a: node(a).get(f"meta-data/{path}")[0], source, holds=lambda n: n == 404)


def status(name: str, expected: int, method: str, path: str, **headers: str) -> Row:
    return Row(name, lambda a: node(a).ask(method, path, **headers)[0], ACCESS, holds=lambda found: found == expected)


def interface(path: str, key: str) -> Row:
    return value(f"network/interfaces/macs/{{mac}}/{path}", lambda it: str(it["NetworkInterfaces"][0][key]))


ROWS = [
    value("ami-id", lambda it: str(it["ImageId"])),
    value("ami-launch-index", lambda it: "0"),
    value("ami-manifest-path", lambda it: "(unknown)"),
    value("block-device-mapping/", lambda it: "ami\nebs1\nroot", CATEGORIES),
    value("block-device-mapping/root", lambda it: str(it["RootDeviceName"])),
    value("block-device-mapping/ami", lambda it: str(it["RootDeviceName"])),
    value("block-device-mapping/ebs1", lambda it: "sdb"),
    value("events/maintenance/scheduled", lambda it: "[]", CATEGORIES),
    value("events/maintenance/history", lambda it: "[]", CATEGORIES),
    value("hostname", lambda it: f"ip-{it['PrivateIpAddress'].replace('.', '-')}.ec2.internal"),
    value("instance-action", lambda it: "none"),
    value("instance-id", lambda it: str(it["InstanceId"])),
    value("instance-life-cycle", lambda it: "on-demand"),
    value("instance-type", lambda it: "m5.large"),
    value("local-hostname", lambda it: str(it["PrivateDnsName"])),
    value("local-ipv4", lambda it: str(it["PrivateIpAddress"])),
    value("mac", lambda it: str(it["NetworkInterfaces"][0]["MacAddress"])),
    value("network/interfaces/macs/", lambda it: f"{it['NetworkInterfaces'][0]['MacAddress']}/", CATEGORIES),
    interface("interface-id", "NetworkInterfaceId"),
    interface("local-ipv4s", "PrivateIpAddress"),
    interface("mac", "MacAddress"),
    interface("owner-id", "OwnerId"),
    interface("subnet-id", "SubnetId"),
    interface("vpc-id", "VpcId"),
    value("network/interfaces/macs/{mac}/device-number", lambda it: "0"),
    value("network/interfaces/macs/{mac}/network-card-index", lambda it: "0"),
    value("network/interfaces/macs/{mac}/security-group-ids", lambda it: str(it["SecurityGroups"][0]["GroupId"])),
    value("network/interfaces/macs/{mac}/security-groups", lambda it: str(it["SecurityGroups"][0]["GroupName"])),
    value("placement/availability-zone", lambda it: ZONE),
    value("placement/region", lambda it: ZONE[:-1]),
    value("security-groups", lambda it: str(it["SecurityGroups"][0]["GroupName"])),
    value("services/domain", lambda it: "amazonaws.com"),
    value("services/partition", lambda it: "aws"),
    value("tags/instance/Name", lambda it: "test-instance"),
    value("tags/instance", lambda it: "Name", TAGS),
    *(absent(path) for path in (
        "placement/group-name", "placement/partition-number", "spot/instance-action", "spot/termination-time",
        "events/recommendations/rebalance", "autoscaling/target-lifecycle-state", "iam/info", "public-keys/",
        "no-such-category")),
    Row("user data in the metadata", lambda a: node(a).get("user-data"), CATEGORIES,
        holds=lambda found: found == (200, SCRIPT)),
    Row("instance identity document", lambda a: (json.loads(node(a).get("dynamic/instance-identity/document")[1]),
                                                 node(a).shown["InstanceId"]),
        f"{MOCK}instance-identity-document",
        holds=lambda found: (found[0]["instanceId"], found[0]["version"], found[0]["accountId"]) == (
            found[1], "2017-09-30", "123456789012")),
    status("metadata without a required token", 401, "GET", "meta-data/"),
    status("metadata with a token that was not issued", 401, "GET", "meta-data/", **{TOKEN: "made-up"}),
    status("token without a time to live", 400, "PUT", "api/token"),
    status("token that lives 21,601 s", 400, "PUT", "api/token", **{TTL: "21601"}),
    status("token that lives 21,600 s", 200, "PUT", "api/token", **{TTL: "21600"}),
    status("token for a request with X-Forwarded-For", 403, "PUT", "api/token",
           **{TTL: "60", "X-Forwarded-For": "10.0.0.1"}),
]  # fmt: skip
