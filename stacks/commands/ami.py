"""`ami`: what the image parameter of a deployment stands for, and pinning it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from stacks.ami_lock import Image, ImageLookupError, lock_path, present_image, read_lock, write_lock
from stacks.config import DeploymentConfig, read


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("ami", help="show what a newer machine image would change, or pin the present one")
    actions = parser.add_subparsers(dest="action", required=True)
    show = actions.add_parser("show", help="print the locked image and the one that the parameter stands for now")
    lock = actions.add_parser("lock", help="write the present image to ami.lock.json beside the file; commit it")
    for action, run in ((show, _show), (lock, _lock)):
        action.add_argument("config", type=Path, help="deployment file")
        action.set_defaults(run=run)


def _show(options: argparse.Namespace) -> int:
    return _with_present_image(options, lock=False)


def _lock(options: argparse.Namespace) -> int:
    return _with_present_image(options, lock=True)


def _with_present_image(options: argparse.Namespace, *, lock: bool) -> int:
    config = read(options.config)
    if not config.node.ami.startswith("/"):
        print(f"node.ami is {config.node.ami}: pinned by its value, nothing to look up")
        return 0
    path = lock_path(options.config)
    locked = read_lock(path).get(config.region, {}).get(config.node.ami)
    try:
        present = present_image(_client("ssm", config), _client("ec2", config), config.node.ami)
    except ImageLookupError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{config.node.ami} in {config.region}")
    print(f"  locked:  {_words(locked)}")
    print(f"  present: {_words(present)}")
    if locked == present:
        print("the lock is that of the present image: nothing changes")
    elif lock:
        write_lock(path, config.region, config.node.ami, present)
        print(f"{path}: written; the next deploy replaces nodes" if locked else f"{path}: written; commit it")
    elif locked:
        print("`ami lock` would replace the nodes at the next deploy")
    else:
        print("not locked: any deploy takes the image that is present then; `ami lock` pins it")
    return 0


def _client(service: str, config: DeploymentConfig) -> Any:
    import boto3  # commands without AWS start faster without it

    return boto3.client(service, region_name=config.region)


def _words(image: Image | None) -> str:
    return "none" if image is None else f"{image.image} {image.name} ({image.created})"
