"""Sessions for the roles that `cdk bootstrap` creates."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from stacks.config import DeploymentConfig
from stacks.constructs.cdk_bootstrap_roles import QUALIFIER_KEY, Duty, project_qualifier, role_arn

SESSION_NAME = "trainstack-deliver"


class AccountError(RuntimeError):
    """AWS did not respond or rejected the call. The message contains a remedy."""


def lookup_session(config: DeploymentConfig) -> boto3.Session:
    """Return a session for the read-only role in a deployment's account.

    Raises:
        AccountError: There are no credentials, the account is not bootstrapped, or the role cannot be assumed.
    """
    return _session(config, "lookup")


def deploy_session(config: DeploymentConfig) -> boto3.Session:
    """Return a session for the role with which the CDK CLI creates, changes and deletes stacks.

    Raises:
        AccountError: There are no credentials, the account is not bootstrapped, or the role cannot be assumed.
    """
    return _session(config, "deploy")


def _session(config: DeploymentConfig, duty: Duty) -> boto3.Session:
    settings = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
    sts = boto3.Session(region_name=config.region).client("sts", config=settings)
    try:
        caller = sts.get_caller_identity()
        partition, account = caller["Arn"].split(":")[1], config.account or caller["Account"]
        qualifier = project_qualifier()
        role = role_arn(duty, qualifier, partition=partition, account=account, region=config.region)
        keys: dict[str, Any] = sts.assume_role(RoleArn=role, RoleSessionName=SESSION_NAME)["Credentials"]
    except ClientError as error:
        remedy = (
            f"run `cdk bootstrap aws://{config.account or 'ACCOUNT'}/{config.region}`, or use credentials with "
            f"permission to assume the role; if the bootstrap has a custom qualifier, set {QUALIFIER_KEY} in cdk.json"
        )
        raise AccountError(f"{config.name}: cannot assume the bootstrap's {duty} role ({error}); {remedy}") from error
    except BotoCoreError as error:
        remedy = "run `aws configure` or `aws sso login`, or set AWS_PROFILE"
        raise AccountError(f"{config.name}: cannot call AWS ({error}); {remedy}") from error
    return boto3.Session(
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
        region_name=config.region,
    )


def environment_of(session: boto3.Session) -> dict[str, str]:
    """Return the environment variables that contain the session's credentials."""
    keys = session.get_credentials().get_frozen_credentials()
    return {
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token,
    }
