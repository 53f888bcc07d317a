"""torchrun with a store that listens only on the address of the gang's first node.

By default, torch's store accepts connections on all of a node's addresses. It does not authenticate them, so any
process that connects can read and overwrite the values that ranks use to find each other. The store can use a socket
that is already bound (`master_listen_fd`). Source (2026-11): https://docs.pytorch.org/docs/stable/distributed.html
(TCPStore)
"""

from __future__ import annotations

import socket
import sys
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed import run
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous


def listen_on_own_address() -> None:
    """Make this process's static rendezvous create its store with `store_on_address`.

    The rendezvous must keep the name `static`, which torchrun treats specially.
    """
    vars(static_tcp_rendezvous)["TCPStore"] = store_on_address


def store_on_address(
    host: str, port: int, world_size: int, is_master: bool, timeout: timedelta, *, multi_tenant: bool
) -> TCPStore:
    """Return a store. On the master, its server listens only on the host's address.

    Raises:
        OSError: The host is not an address of this machine, or the port is in use.
    """
    if not is_master:
        return TCPStore(host, port, world_size, False, timeout, multi_tenant=multi_tenant)
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        descriptor = listener.detach()
    return TCPStore(host, port, world_size, True, timeout, multi_tenant=multi_tenant, master_listen_fd=descriptor)


def main() -> None:
    """Run torchrun with this process's arguments."""
    listen_on_own_address()
    run.main(sys.argv[1:])


if __name__ == "__main__":
    main()
