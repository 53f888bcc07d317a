"""Deletes a deployment's data: the objects in its buckets, then StorageStack, then NetworkStack if it remains.

The objects are deleted with the caller's credentials, because the bootstrap roles cannot delete them. CloudFormation
deletes everything else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from stacks.config import DeploymentConfig
from stacks.delivery.deploy import run_cdk
from stacks.delivery.destroy import delete_stack, print_remaining
from stacks.delivery.failed_create import GONE, describe, resources
from stacks.delivery.sessions import deploy_session, lookup_session
from stacks.errors import DeployError

BATCH = 1000
"""The maximum number of objects in one DeleteObjects call.
Source (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html"""


def delete_data(config: DeploymentConfig, file: Path) -> None:
    """Delete StorageStack with its data, and NetworkStack if it still exists. The caller checks both settings.

    Raises:
        DeployError: A bucket could not be emptied, or a stack could not be deleted.
        AccountError: A bootstrap role cannot be assumed.
    """
    name = f"{config.name}-StorageStack"
    try:
        client = deploy_session(config).client("cloudformation")
        if describe(client, name) is not None:
            # The deployed template retains the data. This deploy replaces its deletion policies.
            arguments = ["deploy", "StorageStack", "--exclusively", "--require-approval", "never", "--ci"]
            run_cdk(config, file, [*arguments, "--context", "allow-destroy=true"], is_interactive=False)
            s3 = boto3.Session(region_name=config.region).client("s3")
            for one in resources(client, name):
                if one["ResourceType"] == "AWS::S3::Bucket" and one["ResourceStatus"] not in GONE:
                    _empty(s3, str(one["PhysicalResourceId"]))
            delete_stack(client, name)
        network = f"{config.name}-NetworkStack"
        if describe(client, network) is not None:
            delete_stack(client, network)
        print_remaining(lookup_session(config), config.name)
    except (BotoCoreError, ClientError) as error:
        raise DeployError(f"{config.name}: {error}") from error


def _empty(s3: Any, bucket: str) -> None:
    """Delete all versions of all objects.

    Raises:
        DeployError: S3 did not delete an object.
    """
    deleted = 0
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": BATCH})
    for page in pages:
        found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        if not found:
            continue
        objects = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in found]
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        if answer.get("Errors"):
            first = answer["Errors"][0]
            raise DeployError(f"s3://{bucket}/{first['Key']}: {first['Code']}: {first['Message']}")
        deleted += len(objects)
        print(f"{bucket}: {deleted} objects deleted", flush=True)
