"""`ami.lock.json`: which image a parameter stood for when somebody looked, so that no deploy replaces nodes unasked.

One file beside the deployment files, to be committed: {region: {parameter: {image, name, created}}}.
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
    """AWS did not say which image a parameter stands for."""


@dataclass(frozen=True)
class Image:
    """A machine image: id, name, and when it was made (ISO 8601)."""

    image: str
    name: str
    created: str


def lock_path(config_path: Path) -> Path:
    """Return where the lock of a deployment file is."""
    return config_path.with_name(LOCK_NAME)


def read_lock(path: Path) -> dict[str, dict[str, Image]]:
    """Return the locked images by region and parameter; none when there is no file.

    Raises:
        ConfigError: The file is not a lock.
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
        rule = f"is not a lock of machine images: {error}"
        problem = Problem(str(path), None, rule, "write it anew: `python -m stacks ami lock FILE`")
        raise ConfigError(str(path), [problem]) from error


def locked_image(config_path: Path, region: str, ami: str) -> str | None:
    """Return the image id that an image parameter is locked to; None: not locked, or `ami` is an id itself.

    Raises:
        ConfigError: The lock is not one.
    """
    if not ami.startswith("/"):
        return None
    found = read_lock(lock_path(config_path)).get(region, {}).get(ami)
    return None if found is None else found.image


def present_image(ssm: Any, ec2: Any, parameter: str) -> Image:
    """Ask which image a public parameter stands for now.

    Raises:
        ImageLookupError: AWS did not say: no such parameter, rights, network.
    """
    try:
        image_id = ssm.get_parameter(Name=parameter)["Parameter"]["Value"]
        images = ec2.describe_images(ImageIds=[image_id])["Images"]
    except (BotoCoreError, ClientError) as error:
        raise ImageLookupError(f"{parameter}: {error}; rights: ssm:GetParameter, ec2:DescribeImages") from error
    if not images:
        raise ImageLookupError(f"{parameter}: stands for {image_id}, which this account cannot see")
    return Image(image=image_id, name=images[0].get("Name", ""), created=images[0].get("CreationDate", ""))


def write_lock(path: Path, region: str, parameter: str, image: Image) -> None:
    """Lock a parameter to an image; other regions and parameters stay."""
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
