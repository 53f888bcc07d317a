"""The `image` section: the container image that `trainstack image build` makes for a deployment file.

Sources (2026-11): https://github.com/opencontainers/image-spec/blob/main/annotations.md and, for the names,
https://github.com/distribution/reference/blob/main/reference.go
"""

from __future__ import annotations

from typing import Literal

from stacks.config.node import PythonVersion
from stacks.config.setting import Arn, Section, setting

EDIT: Literal["requires a new image"] = "requires a new image"
BASE = r"^[a-z0-9][A-Za-z0-9._:/-]{0,200}(@sha256:[0-9a-f]{64})?$"
REPOSITORY = r"^[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$"


class ImageConfig(Section):
    """The container image of a run: a base image, locked wheels, the node program and your code, in this order."""

    base: str = setting(
        "Base image for Linux on x86_64 with a Python interpreter, such as `python:3.11-slim-bookworm`, or an image "
        "with torch. `trainstack image lock FILE` pins its digest in `image.lock.json` next to the file.",
        edit=EDIT,
        pattern=BASE,
    )
    repository: str | None = setting(
        "Repository to push the image to, such as `123456789012.dkr.ecr.us-east-1.amazonaws.com/trainer`. Slurm and "
        "Kubernetes pull the image from there. `null`: the image stays on the machine that builds it; a fleet's "
        "StorageStack creates an ECR repository, and its output `ImageRepository` is the repository's address.",
        edit=EDIT,
        default=None,
        pattern=REPOSITORY,
    )
    python: PythonVersion = setting("Version of the base image's interpreter.", edit=EDIT, default="3.11")
    interpreter: str = setting(
        "Path of the interpreter in the base image. The build uses it to create the virtual environment that contains "
        "`node.python.interpreter`.",
        edit=EDIT,
        default="/usr/bin/python3",
        pattern=r"^/[A-Za-z0-9_./-]+$",
    )
    torch: Literal["cuda", "cpu", "base"] = setting(
        "Source of torch and numpy. `cuda`: the tested build from PyPI with its CUDA libraries; `cpu`: the tested "
        "build for CPUs; `base`: the base image contains them.",
        edit=EDIT,
        default="cuda",
    )
    keep_images: int = setting(
        "Number of newest images to keep in the deployment's own repository; ECR deletes older images.",
        edit="in place",
        default=20,
        ge=1,
        le=1000,
    )
    pull_roles: list[Arn] = setting(
        "Existing IAM roles, such as the role of a cluster's nodes, that may pull from the deployment's own "
        "repository. Roles in this account whose policies already allow it do not need an entry.",
        edit="in place",
        default=[],
        max_length=20,
    )
