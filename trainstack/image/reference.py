"""Puts the image of the image section into the sections of Slurm and Kubernetes.

Formats (2026-11): https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md ([REGISTRY#]IMAGE[:TAG]),
https://apptainer.org/docs/user/main/docker_and_oci.html (docker://REGISTRY/IMAGE:TAG) and
https://kubernetes.io/docs/concepts/containers/images/#image-names
"""

from __future__ import annotations

from pathlib import Path

from stacks.config import DeploymentConfig
from stacks.validators.image import uses_image


def with_image(config: DeploymentConfig, file: Path) -> DeploymentConfig:
    """Return a valid deployment whose containers name their image.

    Raises:
        CommandError: The image is not locked, or its lock is outdated.
    """
    if not uses_image(config):
        return config
    from trainstack.image.recipe import recipe_of  # reads all code

    name = recipe_of(config, file).reference("environment")
    if config.kubernetes is not None and config.runs_pods:
        return config.model_copy(update={"kubernetes": config.kubernetes.model_copy(update={"image": name})})
    assert config.slurm is not None and config.slurm.container is not None, "stacks.validators.image.uses_image"
    container = config.slurm.container
    registry, _, path = name.partition("/")
    image = f"{registry}#{path}" if container.runtime == "pyxis" else f"docker://{name}"
    container = container.model_copy(update={"image": image})
    return config.model_copy(update={"slurm": config.slurm.model_copy(update={"container": container})})
