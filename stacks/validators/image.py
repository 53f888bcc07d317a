"""Rules for the image section."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from stacks.config import DeploymentConfig
from stacks.errors import Problem

SYSTEM_FOLDERS = ("/", "/usr", "/usr/local")


def own_repository(config: DeploymentConfig) -> Iterator[Problem]:
    """Only the stacks of a fleet create a repository, and only without another one. Its nodes run no containers."""
    image = config.image
    if image is None:
        return
    if config.engine == "fleet" and image.repository is not None:
        rule = "has no effect on the nodes of a fleet, and the deployment then creates no repository"
        yield Problem("image.repository", image.repository, rule, "remove it, or set another engine", "warning")
    if config.engine != "fleet" or image.repository is not None:
        for key in ("keep_images", "pull_roles"):
            if key in image.model_fields_set:
                rule = "applies only to the repository that a fleet creates if image.repository is not set"
                yield Problem(f"image.{key}", getattr(image, key), rule, "remove it")


def pull_roles(config: DeploymentConfig) -> Iterator[Problem]:
    """A repository policy names roles."""
    for index, arn in enumerate(config.image.pull_roles if config.image is not None else ()):
        if ":iam::" not in arn or ":role/" not in arn:
            yield Problem(f"image.pull_roles.{index}", arn, "must be the ARN of an IAM role", "correct it")


FLEET_RULES = (own_repository, pull_roles)


def uses_image(config: DeploymentConfig) -> bool:
    """Return whether the jobs or pods run the image of the image section."""
    if config.image is None:
        return False
    if config.runs_pods:
        return config.kubernetes is not None and config.kubernetes.image is None
    container = config.slurm.container if config.runs_slurm_jobs and config.slurm is not None else None
    return container is not None and container.image is None


def source(config: DeploymentConfig) -> Iterator[Problem]:
    """Containers have exactly one image."""
    path, needed, named = "kubernetes.image", False, False
    if config.runs_pods and config.kubernetes is not None:
        needed, named = True, config.kubernetes.image is not None
    elif config.runs_slurm_jobs and config.slurm is not None and config.slurm.container is not None:
        path, needed, named = "slurm.container.image", True, config.slurm.container.image is not None
    if needed and not named and config.image is None:
        yield Problem(path, None, "is missing, and there is no image section", "name an image, or add image.base")
    if config.image is not None and (named or not needed):
        rule = f"has no effect, because {path} names another image" if named else "has no effect without a container"
        remedy = f"remove one of them; without {path}, the section's image is used" if named else "set slurm.container"
        yield Problem("image", "set", rule, remedy, "warning")


def repository(config: DeploymentConfig) -> Iterator[Problem]:
    """Nodes pull the image from a repository."""
    if config.image is not None and uses_image(config) and config.image.repository is None:
        rule = f"is missing, but the nodes of engine {config.engine} pull the image"
        yield Problem(
            "image.repository", None, rule, "set a repository to which you push with `trainstack image build`"
        )


def environment(config: DeploymentConfig) -> Iterator[Problem]:
    """The environment of the image is a folder of its own, made from the base's interpreter."""
    if config.image is None or not uses_image(config):
        return
    interpreter = PurePosixPath(config.node.python.interpreter)
    folder = interpreter.parent.parent
    is_own = interpreter.is_absolute() and interpreter.parent.name == "bin" and str(folder) not in SYSTEM_FOLDERS
    if not is_own or interpreter.name not in ("python", "python3"):
        rule = "must be FOLDER/bin/python3 with a folder of its own, in which the image's environment is made"
        yield Problem("node.python.interpreter", str(interpreter), rule, "remove it, or set /opt/pytorch/bin/python3")
    if config.image.interpreter == str(interpreter):
        rule = "must be an interpreter of the base, outside of the environment that the image contains"
        yield Problem("image.interpreter", str(interpreter), rule, "set an interpreter such as /usr/bin/python3")


def build_of_torch(config: DeploymentConfig) -> Iterator[Problem]:
    """The tested build of torch exists for the interpreter."""
    if config.image is not None and config.image.torch == "cpu" and config.image.python != "3.11":
        rule = "the tested build of torch for CPUs is for Python 3.11"
        yield Problem("image.python", config.image.python, rule, "set 3.11, or image.torch: cuda or base")


RULES = (source, repository, environment, build_of_torch, own_repository)
