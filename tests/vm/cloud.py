"""The embedded cloud with QEMU guests as instances: `python -m tests.vm.cloud STATE IMAGES ACCELERATOR`."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

from localcloud import daemon
from localcloud.compute.machines import inventory, metadata_server
from localcloud.compute.machines.instance import Instance
from tests.vm.image import make_image
from tests.vm.machine import MetadataOnPort80, VirtualMachine

REGION, PORT = "us-east-1", 4680


def _bound(servers: metadata_server.MetadataServers, instance: Instance) -> metadata_server.MetadataServer:
    return MetadataOnPort80("127.0.0.1", instance, servers._sources, servers._clock)


def main() -> None:
    """Serve until terminated."""
    state, images, accelerator = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    machine = partial(VirtualMachine, image=make_image(images), accelerator=accelerator)
    # Replace the implementation of instances behind the EC2 API.
    inventory.Machine = machine  # type: ignore[assignment,misc]
    metadata_server.MetadataServers._bound = _bound  # type: ignore[method-assign]
    daemon.serve(state, region=REGION, port=PORT)


if __name__ == "__main__":
    main()
