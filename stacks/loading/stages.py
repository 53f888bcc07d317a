"""Rules for the deployment files of the pipeline's stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from stacks.config import DeploymentConfig
from stacks.config.setting import UndecodedKey
from stacks.errors import ConfigError, Problem

Read = Callable[[Path], DeploymentConfig]


def stage_problems(config: DeploymentConfig, read: Read) -> list[Problem]:
    """Return the problems with a pipeline's stages. `read` decodes a deployment file."""
    found: list[Problem] = []
    with suppress(UndecodedKey):
        for problem in _stages(config, read):
            found.append(problem)
    return found


def _stages(config: DeploymentConfig, read: Read) -> Iterator[Problem]:
    """Each stage is a valid deployment file in the repository and describes a different deployment."""
    pipeline = config.delivery.pipeline
    if pipeline is None:
        return
    seen: dict[tuple[str, str, str | None], str] = {}
    for index, name in enumerate(pipeline.stages):
        path = f"delivery.pipeline.stages.{index}"
        if name in pipeline.stages[:index]:
            yield Problem(path, name, "is listed twice", "keep one")
            continue
        if Path(name).is_absolute() or ".." in Path(name).parts:
            rule = "must be inside the repository because the pipeline only checks out the repository"
            yield Problem(path, name, rule, "use a path such as config/production.yaml")
            continue
        try:
            stage = read(Path(name))
        except ConfigError as error:
            rule = f"is not a valid deployment file ({error.problems[0]})"
            yield Problem(path, name, rule, f"run `python -m stacks check {name}` in the repository root")
            continue
        if stage.engine != "fleet":
            rule = f"has engine {stage.engine}, which has no stacks to deploy"
            yield Problem(path, name, rule, "list files with engine: fleet")
        place = (stage.name, stage.region, stage.account)
        if place in seen:
            rule = f"describes the same deployment ({stage.name} in {stage.region}) as {seen[place]}"
            yield Problem(path, name, rule, "give each stage's file a different name, region or account")
        seen[place] = name
        yield from _reach(config, path, name, stage)


def _reach(config: DeploymentConfig, path: str, name: str, stage: DeploymentConfig) -> Iterator[Problem]:
    """A pipeline that deploys to another account or region requires both account ids.

    Source (2026-11): https://docs.aws.amazon.com/cdk/v2/guide/cdk-pipeline.html
    """
    elsewhere = stage.region != config.region or stage.account != config.account
    if elsewhere and (stage.account is None or config.account is None):
        rule = "deploys to another account or region, which requires both account ids"
        yield Problem(path, name, rule, f"set `account` in {name} and in this file")
