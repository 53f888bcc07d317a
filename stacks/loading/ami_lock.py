"""`ami.lock.json`, which pins the image for each image parameter. A newer image would replace nodes unexpectedly.

The file is next to the deployment files; commit it. Format: {region: {parameter: {image, name, created}}}.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from stacks.errors import ConfigError, Problem

LOCK_NAME = "ami.lock.json"


class ImageLookupError(RuntimeError):
    """The image for a parameter cannot be read from AWS."""


@dataclass(frozen=True)
class Image:
    """A machine image with its id, name and creation time (ISO 8601)."""

    image: str
    name: str
    created: str


def lock_path(config_path: Path) -> Path:
    """Return the path of the lock file for a deployment file."""
    return config_path.with_name(LOCK_NAME)


def read_lock(path: Path) -> dict[str, dict[str, Image]]:
    """Return the locked images by region and parameter, or an empty mapping if there is no lock file.

    Raises:
        ConfigError: The lock file is not valid.
    """
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
        return {
            region: {parameter: Image(**image) for parameter, image in images.items()}
            for region, images in loaded.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        rule = f"is not a valid machine image lock: {error}"
        problem = Problem(str(path), None, rule, "remove it, and run `python -m stacks ami lock FILE`")
        raise ConfigError(str(path), [problem]) from error


def locked_image(config_path: Path, region: str, ami: str) -> str | None:
    """Return the image id that an image parameter is locked to, or None if it is not locked or `ami` is an image id.

    Raises:
        ConfigError: The lock file is not valid.
    """
    if not ami.startswith("/"):
        return None
    found = read_lock(lock_path(config_path)).get(region, {}).get(ami)
    return None if found is None else found.image


def current_image(ssm: Any, ec2: Any, parameter: str) -> Image:
    """Return the image that a public parameter currently resolves to.

    Raises:
        ImageLookupError: The parameter does not exist, permissions are missing, or AWS is not reachable.
    """
    try:
        image_id = ssm.get_parameter(Name=parameter)["Parameter"]["Value"]
        images = ec2.describe_images(ImageIds=[image_id])["Images"]
    except (BotoCoreError, ClientError) as error:
        raise ImageLookupError(f"{parameter}: {error}; permissions: ssm:GetParameter, ec2:DescribeImages") from error
    if not images:
        raise ImageLookupError(f"{parameter}: image {image_id} is not visible to this account")
    return Image(image=image_id, name=images[0].get("Name", ""), created=images[0].get("CreationDate", ""))


def write_lock(path: Path, region: str, parameter: str, image: Image) -> None:
    """Lock a parameter to an image. The locks of other regions and parameters stay unchanged."""
    locked = read_lock(path)
    locked.setdefault(region, {})[parameter] = image
    plain = {
        where: {name: asdict(one) for name, one in sorted(images.items())} for where, images in sorted(locked.items())
    }
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(json.dumps(plain, indent=2) + "\n")
    written = Path(file.name)
    written.chmod(0o644)
    written.replace(path)
