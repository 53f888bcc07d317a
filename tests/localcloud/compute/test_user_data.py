"""The real user data on an instance: it starts the node program, or reports why it cannot read the node bundle."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path

import pytest

SHIM = Path(__file__).resolve().parents[3] / "stacks" / "constructs" / "nodes" / "shim.sh"
PROGRAM = """import sys
print("booted", *sys.argv[1:], open(sys.argv[-1] + "/node.json").read())
"""


@pytest.fixture(scope="module")
def user_data(cloud):
    """Return user data that tries once to download a bundle from the bucket `bundles`."""
    s3, buffer = cloud.client("s3"), io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("bootstrap/__main__.py", PROGRAM)
    for bucket in ("logs-of-nodes", "bundles"):
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="bundles", Key="node.zip", Body=buffer.getvalue())
    values = {"REGION": "eu-west-1", "LOGS": "logs-of-nodes", "BUCKET": "bundles", "KEY": "node.zip"}
    script = SHIM.read_text().replace("in 1 2 4 8 0", "in 0")
    sha256 = hashlib.sha256(buffer.getvalue()).hexdigest()
    for name, value in {**values, "SHA256": sha256, "PYTHON": sys.executable}.items():
        script = script.replace(f"@{name}@", value)
    return script + '{"node": 1}\n'


def test_the_node_program_starts_with_its_document(cloud, user_data):
    (instance,) = cloud.run(UserData=user_data, IamInstanceProfile={"Name": "node"})
    root = cloud.state / "instances" / instance / "root"
    assert f'booted boot --root {root} {{"node": 1}}' in cloud.until_printed(instance, "exit status 0")


def test_the_cause_of_a_refused_bundle_is_reported_under_the_user_id(cloud, user_data):
    """This happens if the node role does not allow access to the bootstrap bucket."""
    iam = cloud.client("iam")
    trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    own = "arn:aws:s3:::logs-of-nodes/nodes/${aws:userid}/*"
    allowed = {"Effect": "Allow", "Action": "s3:PutObject", "Resource": own}
    version = {"Version": "2012-10-17"}
    document = json.dumps({**version, "Statement": [trust]})
    role_id = iam.create_role(RoleName="refused", AssumeRolePolicyDocument=document)["Role"]["RoleId"]
    iam.put_role_policy(
        RoleName="refused", PolicyName="p", PolicyDocument=json.dumps({**version, "Statement": [allowed]})
    )
    iam.create_instance_profile(InstanceProfileName="refused")
    iam.add_role_to_instance_profile(InstanceProfileName="refused", RoleName="refused")
    profile = {"IamInstanceProfile": {"Name": "refused"}}
    user_data = user_data.replace("@ROLE@", role_id)
    (instance,) = cloud.run(UserData=user_data, InstanceInitiatedShutdownBehavior="terminate", **profile)
    cloud.until_state(instance, "terminated")
    console = (cloud.state / "instances" / instance / "console.log").read_text()
    stored = cloud.client("s3").get_object(Bucket="logs-of-nodes", Key=f"nodes/{role_id}:{instance}/shim.log")["Body"]
    for text in (console, stored.read().decode()):
        assert "(AccessDenied) when calling the GetObject operation" in text and "bundles/node.zip" in text
