"""A TCP proxy with a latency and a maximum rate per connection, like S3.

The kernel limits the rate (SO_MAX_PACING_RATE), so the proxy costs little more than copying the data.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SO_MAX_PACING_RATE = 47  # Linux; not in the socket module
_BUFFER_BYTES = 256 * 1024


def serve(target_port: int, bytes_per_second: int, wait_seconds: float) -> None:
    """Serve on a free port of the loopback interface, and print the port, until the process ends."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, bytes_per_second)
            server = socket.create_connection(("127.0.0.1", target_port))
            for source, sink, wait in ((client, server, wait_seconds), (server, client, 0.0)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_pump, args=(source, sink, wait), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, wait_seconds: float) -> None:
    buffer = bytearray(_BUFFER_BYTES)
    with contextlib.suppress(OSError), memoryview(buffer) as view:  # if either side closes, close both
        while (count := source.recv_into(buffer)) > 0:
            if wait_seconds:
                time.sleep(wait_seconds)  # a request is a single segment, so this delays its first byte
            sink.sendall(view[:count])
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_WR if end is sink else socket.SHUT_RD)


@contextmanager
def paced(target_port: int, bytes_per_second: int, wait_seconds: float) -> Iterator[str]:
    """Run a proxy in front of a local port; yield its endpoint."""
    command = [sys.executable, "-m", "benchmarks.servers.paced_proxy", str(target_port), str(bytes_per_second)]
    command.append(str(wait_seconds))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
