"""Rules of what carries changes: the pipeline's stages, and whom the workflows' roles trust."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stacks.config import DeploymentConfig, read
from stacks.errors import ConfigError, Problem


def stages(config: DeploymentConfig) -> Iterator[Problem]:
    """Each stage is a deployment file, sound by itself, of a deployment of its own, where the pipeline can reach it."""
    pipeline = config.delivery.pipeline
    if pipeline is None:
        return
    seen: dict[tuple[str, str, str | None], str] = {}
    for index, name in enumerate(pipeline.stages):
        path = f"delivery.pipeline.stages.{index}"
        if name in pipeline.stages[:index]:
            yield Problem(path, name, "stands twice", "keep one")
            continue
        if Path(name).is_absolute() or ".." in Path(name).parts:
            rule = "is not below the repository's root, which is all that the pipeline has"
            yield Problem(path, name, rule, "give a path such as config/production.yaml")
            continue
        try:
            stage = read(Path(name))
        except ConfigError as error:
            rule = f"is no sound deployment file ({error.problems[0]})"
            yield Problem(path, name, rule, f"`python -m stacks check {name}` from the repository's root")
            continue
        place = (stage.name, stage.region, stage.account)
        if place in seen:
            rule = f"is the same deployment ({stage.name} in {stage.region}) as {seen[place]}"
            yield Problem(path, name, rule, "give each stage's file a name of its own")
        seen[place] = name
        yield from _reach(config, path, name, stage)


def _reach(config: DeploymentConfig, path: str, name: str, stage: DeploymentConfig) -> Iterator[Problem]:
    """A pipeline that reaches into another account or region must know both accounts.

    Source (2026-11): https://docs.aws.amazon.com/cdk/v2/guide/cdk-pipeline.html
    """
    elsewhere = stage.region != config.region or stage.account != config.account
    if elsewhere and (stage.account is None or config.account is None):
        rule = "is deployed to another account or region, and the pipeline must know both accounts for that"
        yield Problem(path, name, rule, f"give `account` in {name} and in this file")


def connection(config: DeploymentConfig) -> Iterator[Problem]:
    """The connection is of the pipeline's own account."""
    pipeline = config.delivery.pipeline
    if pipeline is None or config.account is None:
        return
    account = pipeline.connection_arn.split(":")[4]
    if account != config.account:
        rule = f"is a connection of account {account}, and the pipeline is in {config.account}"
        yield Problem("delivery.pipeline.connection_arn", pipeline.connection_arn, rule, "make one in that account")


def github(config: DeploymentConfig) -> Iterator[Problem]:
    """The provider is of the account, each environment stands once, and the gate has somewhere to send people."""
    access = config.delivery.github
    if access is None:
        return
    account = config.account
    if access.provider_arn is not None and account is not None and access.provider_arn.split(":")[4] != account:
        rule = f"is a provider of another account than {account}"
        yield Problem("delivery.github.provider_arn", access.provider_arn, rule, "name that account's, or leave it out")
    for index, name in enumerate(access.environments):
        if name in access.environments[:index]:
            yield Problem(f"delivery.github.environments.{index}", name, "stands twice", "keep one")
    if len(access.environments) == 1:
        rule = "is the only environment, so changes that the gate stops cannot be approved by a workflow"
        remedy = "add one with required reviewers, or deploy those from a laptop"
        yield Problem("delivery.github.environments", access.environments, rule, remedy, "warning")


RULES = (stages, connection, github)
