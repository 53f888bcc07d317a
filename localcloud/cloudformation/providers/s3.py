"""S3: buckets and their policies."""

from __future__ import annotations

import json
import re
from typing import Any

from botocore.exceptions import ClientError

from ..provider import ResourceContext
from .resource import Create, Delete, Describe, Place, Properties, PutResource, Resource, changed, code_of, codes
from .s3_settings import READABLE, SETTINGS, UNSET
from .shapes import dig
from .tagging import key_values


class Bucket(Resource):
    """AWS::S3::Bucket; deleting one that holds objects fails, as on AWS."""

    type_name = "AWS::S3::Bucket"
    service = "s3"
    create_only = frozenset({"BucketName"})
    updatable = frozenset({*SETTINGS, "AccessControl", "Tags"})
    afterwards = frozenset(SETTINGS)
    creates = Create("create_bucket")
    describes = Describe("head_bucket", "Bucket")
    deletes = Delete("delete_bucket", "Bucket")
    gone = codes("NoSuchBucket", "404")
    name_property = "BucketName"
    refuses_existing = True
    # S3 takes aws: tags from CloudFormation only; the local S3 takes them from nobody.
    system_tags = False

    def named(self, at: Place, properties: Properties) -> Properties:
        """Return a name that S3 admits: lower case, 63 characters at most."""
        name = properties.get("BucketName") or at.context.generated_name(maximum_length=63, lower_case=True)
        return {**properties, "BucketName": name}

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return name, canned ACL, and the region, which us-east-1 does not want said."""
        arguments: dict[str, Any] = {"Bucket": properties["BucketName"]}
        if properties.get("AccessControl"):
            arguments["ACL"] = canned_acl(properties["AccessControl"])
            if "OwnershipControls" in properties:
                arguments["ObjectOwnership"] = properties["OwnershipControls"]["Rules"][0]["ObjectOwnership"]
        if at.context.region != "us-east-1":
            arguments["CreateBucketConfiguration"] = {"LocationConstraint": at.context.region}
        return arguments

    def make(self, at: Place, properties: Properties) -> str:
        """Create the bucket, then tag it."""
        name = super().make(at, properties)
        self.retag(at, name, {}, properties)
        return name

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put or clear each setting that differs."""
        for name, value in changed(old, new, *SETTINGS).items():
            operation, parameter, translate, clearing = SETTINGS[name]
            if value is not None:
                at.call(operation, Bucket=physical_id, **{parameter: translate(value)})
            elif isinstance(clearing, str):
                at.call(clearing, Bucket=physical_id)
            else:
                at.call(operation, Bucket=physical_id, **{parameter: clearing})
        if changed(old, new, "AccessControl"):
            at.call("put_bucket_acl", Bucket=physical_id, ACL=canned_acl(new.get("AccessControl") or "Private"))

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN and host names."""
        name, region = properties["BucketName"], at.context.region
        return {
            "Arn": at.arn("s3", name, region=False, account=False),
            "DomainName": f"{name}.s3.amazonaws.com",
            "DualStackDomainName": f"{name}.s3.dualstack.{region}.amazonaws.com",
            "RegionalDomainName": f"{name}.s3.{region}.amazonaws.com",
            "WebsiteURL": f"http://{name}.s3-website-{region}.amazonaws.com",
        }

    def actual(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the settings that keep data private and kept."""
        at, settings = self.place(context), {}
        for name, (operation, place, translate) in READABLE.items():
            try:
                found = dig(at.call(operation, Bucket=physical_id), place)
            except ClientError as error:
                if code_of(error) not in UNSET:
                    raise
                found = None
            settings[name] = translate(found) if found else None
        return settings

    def retag(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the whole tag set, which is all that S3 offers."""
        tags = self.wanted_tags(at.context, new)
        if tags:
            at.call("put_bucket_tagging", Bucket=physical_id, Tagging={"TagSet": key_values(tags)})
        elif old.get("Tags"):
            at.call("delete_bucket_tagging", Bucket=physical_id)


def canned_acl(name: str) -> str:
    """Return S3's name of a template's canned ACL: LogDeliveryWrite is log-delivery-write."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


class BucketPolicy(PutResource):
    """AWS::S3::BucketPolicy; its id is the bucket's name."""

    type_name = "AWS::S3::BucketPolicy"
    service = "s3"
    create_only = frozenset({"Bucket"})
    updatable = frozenset({"PolicyDocument"})
    renames = {"PolicyDocument": "Policy"}
    creates = Create("put_bucket_policy")
    describes = Describe("get_bucket_policy", "Bucket")
    deletes = Delete("delete_bucket_policy", "Bucket")
    gone = codes("NoSuchBucketPolicy", "NoSuchBucket")
    name_property = "Bucket"

    def actual(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the policy."""
        return {
            "PolicyDocument": json.loads(self.place(context).call("get_bucket_policy", Bucket=physical_id)["Policy"])
        }


PROVIDERS = (Bucket(), BucketPolicy())
