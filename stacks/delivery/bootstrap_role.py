"""Taking on the role that `cdk bootstrap` made for reading: what looks at an account may then change nothing."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from stacks.bootstrap_roles import LOOKUP, role_arn
from stacks.config import DeploymentConfig

SESSION_NAME = "trainstack-deliver"


class AccountError(RuntimeError):
    """The account did not answer, or refused; the message says what to do."""


def reading_session(config: DeploymentConfig) -> boto3.Session:
    """Return a session under the lookup role of the account that a deployment goes to.

    Raises:
        AccountError: No credentials, no bootstrap there, or no right to take the role on.
    """
    settings = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
    sts = boto3.Session(region_name=config.region).client("sts", config=settings)
    try:
        caller = sts.get_caller_identity()
        partition, account = caller["Arn"].split(":")[1], config.account or caller["Account"]
        role = role_arn(*LOOKUP, partition=partition, account=account, region=config.region)
        keys: dict[str, Any] = sts.assume_role(RoleArn=role, RoleSessionName=SESSION_NAME)["Credentials"]
    except ClientError as error:
        remedy = (
            f"`cdk bootstrap aws://{config.account or 'ACCOUNT'}/{config.region}`, or sign in as who may take it on"
        )
        raise AccountError(
            f"{config.name}: cannot take on the lookup role of the bootstrap ({error}); {remedy}"
        ) from error
    except BotoCoreError as error:
        remedy = "`aws configure`, `aws sso login`, or set AWS_PROFILE"
        raise AccountError(f"{config.name}: AWS cannot be asked ({error}); {remedy}") from error
    return boto3.Session(
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
        region_name=config.region,
    )


def environment_of(session: boto3.Session) -> dict[str, str]:
    """Return what a program finds the session's credentials by."""
    keys = session.get_credentials().get_frozen_credentials()
    return {
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token,
    }
