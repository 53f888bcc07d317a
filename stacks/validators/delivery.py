"""Rules for the delivery section: the pipeline's connection and the trust policies of the workflow roles.

The rules for the pipeline's stages are in `stacks.loading.stages` because they read other deployment files.
"""

from __future__ import annotations

from collections.abc import Iterator

from stacks.config import DeploymentConfig
from stacks.errors import Problem


def connection(config: DeploymentConfig) -> Iterator[Problem]:
    """The connection belongs to the pipeline's account."""
    pipeline = config.delivery.pipeline
    if pipeline is None or config.account is None:
        return
    account = pipeline.connection_arn.split(":")[4]
    if account != config.account:
        rule = f"belongs to account {account}, but the pipeline runs in {config.account}"
        yield Problem(
            "delivery.pipeline.connection_arn", pipeline.connection_arn, rule, "create one in the pipeline's account"
        )


def github(config: DeploymentConfig) -> Iterator[Problem]:
    """The provider belongs to the account, each environment is listed only once, and one can be used for approvals."""
    access = config.delivery.github
    if access is None:
        return
    account = config.account
    if access.provider_arn is not None and account is not None and access.provider_arn.split(":")[4] != account:
        rule = f"must belong to account {account}"
        remedy = "set that account's provider, or remove the key"
        yield Problem("delivery.github.provider_arn", access.provider_arn, rule, remedy)
    for index, name in enumerate(access.environments):
        if name in access.environments[:index]:
            yield Problem(f"delivery.github.environments.{index}", name, "is listed twice", "keep one")
    if len(access.environments) == 1:
        rule = "has only one environment, so no workflow can approve changes that the gate stops"
        remedy = "add one with required reviewers, or deploy such changes from a laptop"
        yield Problem("delivery.github.environments", access.environments, rule, remedy, "warning")


RULES = (connection, github)
