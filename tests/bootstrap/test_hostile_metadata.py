"""Responses of the metadata service that are truncated, slow, huge or not HTTP.

Source: RFC 9112, section 8 (2022-06): a message whose Content-Length exceeds the received bytes is incomplete, and a
client must not treat it as complete. A socket timeout applies to each receive call:
https://docs.python.org/3/library/socket.html#notes-on-socket-timeouts (2026-11).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from bootstrap.errors import MetadataError, NoMetadataService
from bootstrap.imds import ATTEMPTS, InstanceMetadata
from bootstrap.system import MAX_ANSWER_BYTES, HttpAnswer, System
from tests.bootstrap.fake_system import FakeSystem

HEAD = b"HTTP/1.1 200 OK\r\n"


class RawServer:
    """Sends given bytes, in parts, for each request, and closes the connection."""

    def __init__(self, parts: Callable[[], Iterator[bytes]]) -> None:
        self._parts = parts
        self.requests = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            with connected:
                self.requests += 1
                connected.recv(65536)
                try:
                    for part in self._parts():
                        connected.sendall(part)
                except OSError:  # the client has closed the connection
                    continue

    def close(self) -> None:
        self._socket.close()


class FastClock(System):
    """A clock that advances by a tenth of a second at each reading, so that no test waits for a time limit."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0

    def monotonic_seconds(self) -> float:
        self.readings += 1
        return self.readings / 10

    def sleep(self, seconds: float) -> None:
        pass


CUT = {
    "shorter than its length": HEAD + b"Content-Length: 10\r\n\r\ni-1",
    "cut chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\ni-",
    "no status": b"i-0123456789abcdef0\r\n\r\n",
    "empty": b"",
    "header without end": HEAD + b"X-A: " + b"a" * 70_000,
    "many headers": HEAD + b"X-A: a\r\n" * 200 + b"\r\n",
    "bad chunk size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "huge": HEAD + b"\r\n" + b"x" * (MAX_ANSWER_BYTES + 1),
    "huge length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\nx",
}


@pytest.mark.parametrize("answer", CUT.values(), ids=CUT)
def test_an_invalid_answer_is_no_answer(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    server = RawServer(lambda: iter([answer]))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.endpoint)
    with pytest.raises(NoMetadataService, match="no response after 3 attempts"):
        InstanceMetadata(System()).get("instance-id")
    assert server.requests == ATTEMPTS
    server.close()


@pytest.mark.parametrize("head", [b"", HEAD + b"X-A: ", HEAD + b"\r\n", HEAD + b"Content-Length: 1000\r\n\r\n"])
def test_an_answer_byte_by_byte_ends_at_the_time_limit(head: bytes) -> None:
    def parts() -> Iterator[bytes]:
        yield head
        for _ in range(40):
            acknowledged.acquire()
            yield b"x"

    acknowledged = threading.Semaphore(0)

    class Paced(FastClock):
        """Lets the server send its next byte at each reading of the clock."""

        def monotonic_seconds(self) -> float:
            acknowledged.release()
            return super().monotonic_seconds()

    server = RawServer(parts)
    system = Paced()
    with pytest.raises(TimeoutError, match="the response is still incomplete after the timeout"):
        system.http("GET", server.endpoint + "/latest", timeout_seconds=1.0)
    assert system.readings <= 12
    for _ in range(40):
        acknowledged.release()
    server.close()


def test_a_complete_answer_in_parts_is_returned() -> None:
    parts = [HEAD, b"Content-Length: 5\r\n", b"\r\n", b"ab", b"cde"]
    server = RawServer(lambda: iter(parts))
    answer = System().http("GET", server.endpoint + "/latest", timeout_seconds=10.0)
    assert (answer.status, answer.body) == (200, "abcde")
    server.close()


def test_an_error_status_and_a_redirect_are_returned() -> None:
    for status in (302, 404, 503):
        answer = f"HTTP/1.1 {status} X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 2\r\n\r\nno".encode()
        server = RawServer(lambda answer=answer: iter([answer]))  # type: ignore[misc]
        assert System().http("GET", server.endpoint + "/latest", timeout_seconds=10.0).status == status
        server.close()


@pytest.mark.parametrize("token", ["", "a\nX-B: c", "\u00e9", "t" * 5000, "\0"])
def test_a_token_that_is_no_header_value_is_refused(token: str) -> None:
    """RFC 9110, section 5.5 (2022-06): CR, LF and NUL in a field value are invalid and dangerous."""
    system = FakeSystem()
    system.answers = [HttpAnswer(200, token)]
    with pytest.raises(MetadataError, match="api/token"):
        InstanceMetadata(system).get("instance-id")


@pytest.mark.parametrize("value", ["i-1\0", "i-1\nx", "i 1", "x" * 300])
def test_an_identity_with_other_characters_is_refused(value: str) -> None:
    system = FakeSystem()
    system.answers = [HttpAnswer(200, "token"), HttpAnswer(200, value)]
    with pytest.raises(MetadataError, match="instance-id: .*must be 1 to 256 printable ASCII characters"):
        InstanceMetadata(system).identity()


@pytest.mark.parametrize(
    "text",
    ["[" * 50_000, '{"action": "stop", "time": 1e999}', "[]", '{"action": "stop", "time": "9" }', "9" * 5000, "null"],
    ids=lambda text: text[:20],
)
def test_an_invalid_notice_is_a_metadata_error(text: str) -> None:
    for read in (InstanceMetadata.interruption_notice, InstanceMetadata.rebalance_recommendation):
        system = FakeSystem()
        system.answers = [HttpAnswer(200, "token"), HttpAnswer(200, text)]
        with pytest.raises(MetadataError, match="invalid"):
            read(InstanceMetadata(system))
