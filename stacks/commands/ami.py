"""`ami`: print the image that a deployment's image parameter resolves to, or pin it."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stacks.commands.progress import Progress
from stacks.config import DeploymentConfig
from stacks.loading import read
from stacks.loading.ami_lock import Image, ImageLookupError, current_image, lock_path, read_lock, write_lock


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("ami", help="print the locked and latest machine images, or pin the latest")
    actions = parser.add_subparsers(dest="action", required=True)
    show = actions.add_parser("show", help="print the locked image and the parameter's current image")
    lock = actions.add_parser("lock", help="write the current image to ami.lock.json next to the file; commit it")
    for action, run in ((show, _show), (lock, _lock)):
        action.add_argument("config", type=Path, help="deployment file")
        action.set_defaults(run=run)


def _show(options: argparse.Namespace) -> int:
    return _with_current_image(options, lock=False)


def _lock(options: argparse.Namespace) -> int:
    return _with_current_image(options, lock=True)


def _with_current_image(options: argparse.Namespace, *, lock: bool) -> int:
    config = read(options.config)
    if not config.node.ami.startswith("/"):
        print(f"node.ami is {config.node.ami}, a fixed image id, so there is nothing to look up")
        return 0
    path = lock_path(options.config)
    locked = read_lock(path).get(config.region, {}).get(config.node.ami)
    try:
        with Progress() as progress:
            progress(f"reading {config.node.ami} in {config.region}")
            with ThreadPoolExecutor(2) as pool:  # creating a client takes most of the time
                ssm, ec2 = pool.map(lambda service: _client(service, config), ("ssm", "ec2"))
            current = current_image(ssm, ec2, config.node.ami)
    except ImageLookupError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{config.node.ami} in {config.region}")
    print(f"  locked:  {_text(locked)}")
    print(f"  current: {_text(current)}")
    if locked == current:
        print("the current image is already locked")
    elif lock:
        write_lock(path, config.region, config.node.ami, current)
        print(f"{path}: written; the next deploy replaces nodes" if locked else f"{path}: written; commit it")
    elif locked:
        print("after `ami lock`, the next deploy would replace nodes")
    else:
        print("not locked: each deploy uses the latest image; `ami lock` pins the current one")
    return 0


def _client(service: str, config: DeploymentConfig) -> Any:
    import boto3  # imported here so that commands that do not call AWS start faster
    from botocore.config import Config

    settings = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
    # Use a separate session, because threads must not share one when they create clients.
    return boto3.Session(region_name=config.region).client(service, config=settings)


def _text(image: Image | None) -> str:
    return "none" if image is None else f"{image.image} {image.name} ({image.created})"
