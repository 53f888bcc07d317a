"""IAM, KMS and S3: policy sizes, principals and lockouts, and other rules for roles, keys and buckets."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from tests.truth.row import Account, Row

QUOTAS = "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"
PRINCIPALS = "https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_policies.html"
ROLE_API = "https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html"
KEY_API = "https://docs.aws.amazon.com/kms/latest/APIReference/API_PutKeyPolicy.html"
BLOCK = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-control-block-public-access.html"
BUCKET_POLICY = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucket-policies.html"
ACCOUNT_ID = "123456789012"
ROOT = f"arn:aws:iam::{ACCOUNT_ID}:root"
MISSING = f"arn:aws:iam::{ACCOUNT_ID}:role/does-not-exist"


def policy(*statements: dict[str, Any], filler: int = 0) -> str:
    """Return a policy document; `filler` is the length of an additional resource."""
    rest = [{"Effect": "Deny", "Action": "s3:*", "Resource": f"arn:aws:s3:::{'x' * filler}"}] if filler else []
    return json.dumps({"Version": "2012-10-17", "Statement": [*statements, *rest]})


def trust(**principal: Any) -> str:
    return policy({"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"})


EC2 = trust(Service="ec2.amazonaws.com")
ALLOW = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}


class Role:
    """A new role, with shortcuts for the rows' calls."""

    def __init__(self, account: Account, document: str = EC2, **more: Any) -> None:
        self.iam = account.client("iam")
        self.name = f"truth-{uuid.uuid4().hex[:20]}"
        self.created = self.iam.create_role(RoleName=self.name, AssumeRolePolicyDocument=document, **more)

    def put(self, document: str, name: str = "p") -> Any:
        return self.iam.put_role_policy(RoleName=self.name, PolicyName=name, PolicyDocument=document)

    def attach(self, count: int) -> Any:
        for number in range(count):
            made = self.iam.create_policy(PolicyName=f"{self.name}-{number}", PolicyDocument=policy(ALLOW))
            answer = self.iam.attach_role_policy(RoleName=self.name, PolicyArn=made["Policy"]["Arn"])
        return answer

    def twice(self) -> Any:
        return self.iam.create_role(RoleName=self.name, AssumeRolePolicyDocument=EC2)

    def delete_with_policy(self) -> Any:
        self.put(policy(ALLOW))
        return self.iam.delete_role(RoleName=self.name)


def managed(document: str) -> Callable[[Account], Any]:
    return lambda account: account.client("iam").create_policy(
        PolicyName=f"truth-{uuid.uuid4().hex}", PolicyDocument=document
    )


def key(*statements: dict[str, Any], **more: Any) -> Callable[[Account], Any]:
    return lambda account: account.client("kms").create_key(Policy=policy(*statements), **more)


def key_rule(principal: Any, action: Any = "kms:*", effect: str = "Allow") -> dict[str, Any]:
    return {"Effect": effect, "Principal": {"AWS": principal}, "Action": action, "Resource": "*"}


def bucket(*statements: Callable[[str], dict[str, Any]], block: bool = False) -> Callable[[Account], Any]:
    """Return a function that puts a policy on a new bucket. `statements` are called with the bucket's ARN."""

    def send(account: Account) -> Any:
        s3, name = account.client("s3"), f"truth-{uuid.uuid4().hex}"
        s3.create_bucket(Bucket=name)
        settings = dict.fromkeys(("BlockPublicAcls", "IgnorePublicAcls", "RestrictPublicBuckets"), block)
        configuration = {**settings, "BlockPublicPolicy": block}
        s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=configuration)
        document = policy(*(statement(f"arn:aws:s3:::{name}") for statement in statements))
        return s3.put_bucket_policy(Bucket=name, Policy=document)

    return send


def rule(principal: Any, action: Any, suffix: str = "/*", **more: Any) -> Callable[[str], dict[str, Any]]:
    return lambda arn: {
        "Effect": "Allow",
        "Principal": principal,
        "Action": action,
        "Resource": f"{arn}{suffix}",
        **more,
    }


def tagged(*tags: tuple[str, str]) -> Callable[[Account], Any]:
    return lambda account: Role(account, Tags=[{"Key": name, "Value": value} for name, value in tags])


LIMIT = {"code": "LimitExceeded", "status": 409}
MALFORMED = {"code": "MalformedPolicyDocument", "status": 400}
LOCKED = {
    "code": "MalformedPolicyDocumentException",
    "words": "The new key policy will not allow you to update the key policy in the future.",
    "status": 400,
}
PUBLIC = {"code": "AccessDenied", "words": "BlockPublicPolicy", "status": 403}
APPLIES = {"code": "MalformedPolicy", "words": "Action does not apply to any resource(s) in statement", "status": 400}

ROWS = [
    Row("trust policy of 2,049 characters", lambda a: Role(a, policy(json.loads(EC2)["Statement"][0], filler=2_000)),
        QUOTAS, words="Cannot exceed quota for ACLSizePerRole: 2048", **LIMIT),
    Row("trust policy below the limit", lambda a: Role(a, policy(json.loads(EC2)["Statement"][0], filler=1_700)),
        QUOTAS),
    Row("white space is not counted", lambda a: Role(a, EC2.replace(" ", " " * 500)), QUOTAS),
    Row("inline policy of more than 10,240 characters", lambda a: Role(a).put(policy(ALLOW, filler=10_300)),
        QUOTAS, words="Maximum policy size of 10240 bytes exceeded for role", **LIMIT),
    Row("two inline policies of more than 10,240 characters in total",
        lambda a: (role := Role(a)).put(policy(ALLOW, filler=6_000)) and role.put(policy(ALLOW, filler=6_000), "q"),
        QUOTAS, words="Maximum policy size of 10240 bytes exceeded for role", **LIMIT),
    Row("inline policy replaced by one of the same size",
        lambda a: (role := Role(a)).put(policy(ALLOW, filler=6_000)) and role.put(policy(ALLOW, filler=6_000)), QUOTAS),
    Row("managed policy of more than 6,144 characters", managed(policy(ALLOW, filler=6_200)),
        QUOTAS, words="Cannot exceed quota for PolicySize: 6144", **LIMIT),
    Row("managed policy below the limit", managed(policy(ALLOW, filler=5_900)), QUOTAS),
    Row("ten managed policies", lambda a: Role(a).attach(10), QUOTAS),
    Row("eleven managed policies", lambda a: Role(a).attach(11),
        QUOTAS, words="Cannot exceed quota for PoliciesPerRole: 10", **LIMIT),
    Row("trust policy for a role that does not exist", lambda a: Role(a, trust(AWS=MISSING)),
        PRINCIPALS, words="Invalid principal in policy", **MALFORMED),
    Row("trust policy for a user that does not exist",
        lambda a: Role(a, trust(AWS=f"arn:aws:iam::{ACCOUNT_ID}:user/missing")),
        PRINCIPALS, words="Invalid principal in policy", **MALFORMED),
    Row("trust policy for an existing role", lambda a: Role(a, trust(AWS=Role(a).created["Role"]["Arn"])),
        PRINCIPALS),
    Row("trust policy for the account", lambda a: Role(a, trust(AWS=ACCOUNT_ID)), PRINCIPALS),
    Row("trust policy for the root user", lambda a: Role(a, trust(AWS=ROOT)), PRINCIPALS),
    Row("trust policy for another account's root user", lambda a: Role(a, trust(AWS="arn:aws:iam::999999999999:root")),
        PRINCIPALS),
    Row("trust policy that is not JSON", lambda a: Role(a, "{"), ROLE_API, **MALFORMED),
    Row("role with an existing name", lambda a: Role(a).twice(), ROLE_API, code="EntityAlreadyExists", status=409),
    Row("role with a name of 65 characters",
        lambda a: a.client("iam").create_role(RoleName="r" * 65, AssumeRolePolicyDocument=EC2),
        "botocore iam CreateRoleRequest.RoleName (max 64)", code="ValidationError",
        words="Member must have length less than or equal to 64", status=400),
    Row("deletion of a role that has a policy", lambda a: Role(a).delete_with_policy(),
        "https://docs.aws.amazon.com/IAM/latest/APIReference/API_DeleteRole.html", code="DeleteConflict", status=409),
    Row("missing role", lambda a: a.client("iam").get_role(RoleName="does-not-exist"), ROLE_API,
        code="NoSuchEntity", words="The role with name does-not-exist cannot be found.", status=404),
    Row("role with an aws: tag", tagged(("aws:x", "1")), ROLE_API, code="InvalidInput",
        status=400),
    Row("role with 51 tags", tagged(*((f"t{number}", "v") for number in range(51))), QUOTAS, code="ValidationError",
        status=400),
    Row("role with tag keys that differ only in case", tagged(("a", "1"), ("A", "2")),
        "https://docs.aws.amazon.com/IAM/latest/UserGuide/id_tags.html", code="InvalidInput",
        words="Duplicate tag keys found", status=400),
    Row("deletion of an attached managed policy", lambda a: (role := Role(a)).attach(1) and role.iam.delete_policy(
        PolicyArn=f"arn:aws:iam::{ACCOUNT_ID}:policy/{role.name}-0"),
        "https://docs.aws.amazon.com/IAM/latest/APIReference/API_DeletePolicy.html", code="DeleteConflict", status=409),
    Row("key policy that the account cannot change", key(key_rule(ROOT, "kms:Encrypt")), KEY_API, **LOCKED),
    Row("key policy that denies all", key(key_rule(ROOT, effect="Deny")), KEY_API, **LOCKED),
    Row("key policy that the account cannot change, check bypassed",
        key(key_rule(ROOT, "kms:Encrypt"), BypassPolicyLockoutSafetyCheck=True), KEY_API),
    Row("key policy that the account can change", key(key_rule(ROOT)), KEY_API),
    Row("key policy that names the account by number", key(key_rule(ACCOUNT_ID, ["kms:PutKeyPolicy", "kms:Encrypt"])),
        KEY_API),
    Row("key policy for a role that does not exist", key(key_rule(ROOT), key_rule(MISSING)), KEY_API,
        code="MalformedPolicyDocumentException", words="invalid principals", status=400),
    Row("public bucket policy, blocked", bucket(rule("*", "s3:GetObject"), block=True), BLOCK, **PUBLIC),
    Row("public bucket policy with AWS: *, blocked", bucket(rule({"AWS": "*"}, "s3:GetObject"), block=True),
        BLOCK, **PUBLIC),
    Row("public bucket policy, not blocked", bucket(rule("*", "s3:GetObject")), BLOCK),
    Row("bucket policy for one VPC, public policies blocked",
        bucket(rule("*", "s3:GetObject", Condition={"StringEquals": {"aws:SourceVpc": "vpc-1"}}), block=True), BLOCK),
    Row("bucket policy for the account, public policies blocked",
        bucket(rule({"AWS": ROOT}, "s3:GetObject"), block=True), BLOCK),
    Row("deny statement for everyone, public policies blocked",
        bucket(rule("*", "s3:GetObject", Effect="Deny"), block=True), BLOCK),
    Row("object action on a bucket", bucket(rule({"AWS": ROOT}, "s3:GetObject", suffix="")), BUCKET_POLICY, **APPLIES),
    Row("object and bucket actions on a bucket", bucket(rule({"AWS": ROOT}, ["s3:ListBucket", "s3:PutObject"],
        suffix="")),
        BUCKET_POLICY, **APPLIES),
    Row("bucket action on a bucket", bucket(rule({"AWS": ROOT}, "s3:ListBucket", suffix="")), BUCKET_POLICY),
    Row("bucket policy for a role that does not exist", bucket(rule({"AWS": MISSING}, "s3:GetObject")), BUCKET_POLICY,
        code="MalformedPolicy", words="Invalid principal in policy", status=400),
    Row("bucket policy that is not JSON", lambda a: (s3 := a.client("s3")).create_bucket(Bucket="truth-no-json")
        and s3.put_bucket_policy(Bucket="truth-no-json", Policy="{"), BUCKET_POLICY, code="MalformedPolicy",
        words="Policies must be valid JSON and the first byte must be '{'", status=400),
]  # fmt: skip
