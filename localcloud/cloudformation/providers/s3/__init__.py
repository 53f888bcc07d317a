"""S3 buckets and bucket policies."""

from __future__ import annotations

import json
import re
from typing import Any

from botocore.exceptions import ClientError

from localcloud.cloudformation.provider import ResourceContext
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    PutResource,
    Resource,
    ResourceApi,
    changed,
    error_code,
    error_codes,
)
from localcloud.cloudformation.providers.base.shapes import get_path
from localcloud.cloudformation.providers.base.tagging import tag_list
from localcloud.cloudformation.providers.s3.settings import READABLE, SETTINGS, UNSET


class Bucket(Resource):
    """AWS::S3::Bucket. As on AWS, deleting a bucket that contains objects fails."""

    type_name = "AWS::S3::Bucket"
    service = "s3"
    create_only = frozenset({"BucketName"})
    updatable = frozenset({*SETTINGS, "AccessControl", "Tags"})
    set_after_create = frozenset(SETTINGS)
    create_call = Create("create_bucket")
    describe_call = Describe("head_bucket", "Bucket")
    delete_call = Delete("delete_bucket", "Bucket")
    not_found_codes = error_codes("NoSuchBucket", "404")
    name_property = "BucketName"
    fails_if_exists = True
    # S3 accepts aws: tags only from CloudFormation, and moto does not accept them.
    system_tags = False

    def with_name(self, api: ResourceApi, properties: Properties) -> Properties:
        """Return the properties with a valid bucket name: lower case, at most 63 characters."""
        name = properties.get("BucketName") or api.context.generated_name(maximum_length=63, lower_case=True)
        return {**properties, "BucketName": name}

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the name, canned ACL and region. S3 rejects us-east-1 as a location constraint."""
        arguments: dict[str, Any] = {"Bucket": properties["BucketName"]}
        if properties.get("AccessControl"):
            arguments["ACL"] = canned_acl(properties["AccessControl"])
            if "OwnershipControls" in properties:
                arguments["ObjectOwnership"] = properties["OwnershipControls"]["Rules"][0]["ObjectOwnership"]
        if api.context.region != "us-east-1":
            arguments["CreateBucketConfiguration"] = {"LocationConstraint": api.context.region}
        return arguments

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Create and tag the bucket."""
        name = super().call_create(api, properties)
        self.retag(api, name, {}, properties)
        return name

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Put or clear each changed setting."""
        for name, value in changed(old, new, *SETTINGS).items():
            operation, parameter, convert, clearing = SETTINGS[name]
            if value is not None:
                api.call(operation, Bucket=physical_id, **{parameter: convert(value)})
            elif isinstance(clearing, str):
                api.call(clearing, Bucket=physical_id)
            else:
                api.call(operation, Bucket=physical_id, **{parameter: clearing})
        if changed(old, new, "AccessControl"):
            api.call("put_bucket_acl", Bucket=physical_id, ACL=canned_acl(new.get("AccessControl") or "Private"))

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN and the host names."""
        name, region = properties["BucketName"], api.context.region
        return {
            "Arn": api.arn("s3", name, region=False, account=False),
            "DomainName": f"{name}.s3.amazonaws.com",
            "DualStackDomainName": f"{name}.s3.dualstack.{region}.amazonaws.com",
            "RegionalDomainName": f"{name}.s3.{region}.amazonaws.com",
            "WebsiteURL": f"http://{name}.s3-website-{region}.amazonaws.com",
        }

    def read_properties(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the settings that protect the bucket's data."""
        api, settings = self.api(context), {}
        for name, (operation, path, convert) in READABLE.items():
            try:
                found = get_path(api.call(operation, Bucket=physical_id), path)
            except ClientError as error:
                if error_code(error) not in UNSET:
                    raise
                found = None
            settings[name] = convert(found) if found else None
        return settings

    def retag(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the complete tag set, since S3 cannot change individual tags."""
        tags = self.desired_tags(api.context, new)
        if tags:
            api.call("put_bucket_tagging", Bucket=physical_id, Tagging={"TagSet": tag_list(tags)})
        elif old.get("Tags"):
            api.call("delete_bucket_tagging", Bucket=physical_id)


def canned_acl(name: str) -> str:
    """Return S3's name for a template's canned ACL, such as log-delivery-write for LogDeliveryWrite."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


class BucketPolicy(PutResource):
    """AWS::S3::BucketPolicy. The physical ID is the bucket's name."""

    type_name = "AWS::S3::BucketPolicy"
    service = "s3"
    create_only = frozenset({"Bucket"})
    updatable = frozenset({"PolicyDocument"})
    parameter_names = {"PolicyDocument": "Policy"}
    create_call = Create("put_bucket_policy")
    describe_call = Describe("get_bucket_policy", "Bucket")
    delete_call = Delete("delete_bucket_policy", "Bucket")
    not_found_codes = error_codes("NoSuchBucketPolicy", "NoSuchBucket")
    name_property = "Bucket"

    def read_properties(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the policy."""
        return {"PolicyDocument": json.loads(self.api(context).call("get_bucket_policy", Bucket=physical_id)["Policy"])}


PROVIDERS = (Bucket(), BucketPolicy())
