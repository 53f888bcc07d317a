"""The key-value store through which ranks find each other. It listens only on the address of the gang's first node.

By default, torch's store accepts connections on all of a node's addresses. It does not authenticate them, so any
process that connects can read and overwrite the values that ranks use to find each other. The store can use a socket
that is already bound (`master_listen_fd`). Source (2026-11): https://docs.pytorch.org/docs/stable/distributed.html
(TCPStore)
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from training.errors import PeerError

HOST_VARIABLE = "TRAINSTACK_STORE_HOST"
"""Set by the launcher: rank 0 hosts the store, and every rank, including rank 0, connects to it as a client."""
_TIMEOUT = timedelta(seconds=180)
_hosted: list[TCPStore] = []


def host_store() -> None:
    """On rank 0 of a gang from the launcher, host the store until this process ends.

    Raises:
        PeerError: The address does not belong to this machine, or its port is in use.
    """
    if _hosted or HOST_VARIABLE not in os.environ or os.environ.get("RANK") != "0":
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        _hosted.append(store_on_address(address, port, _TIMEOUT))
    except (OSError, RuntimeError) as error:
        raise PeerError(f"{address}:{port}: rank 0 cannot host the gang's store ({error})") from error


def gang_store(address: str, port: int, is_host: bool, timeout: timedelta) -> TCPStore:
    """Return a generation's store, as its host or as a client.

    Raises:
        PeerError: The host cannot listen, or a client cannot connect within the timeout.
    """
    try:
        if is_host:
            return store_on_address(address, port, timeout)
        return TCPStore(address, port, None, False, timeout)
    except (OSError, RuntimeError) as error:
        raise PeerError(f"{address}:{port}: no store of the next generation ({error})") from error


def store_on_address(host: str, port: int, timeout: timedelta) -> TCPStore:
    """Return a store whose server listens only on the host's address.

    Raises:
        OSError: The host is not an address of this machine, or the port is in use.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        descriptor = listener.detach()
    return TCPStore(
        host, port, None, True, timeout, wait_for_workers=False, multi_tenant=True, master_listen_fd=descriptor
    )
