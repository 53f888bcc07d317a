"""A package index on this machine that counts the downloads of each wheel."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename


class Index:
    """Serves wheels in the format of the simple repository API.

    Source (2026-11): https://packaging.python.org/en/latest/specifications/simple-repository-api/

    Attributes:
        downloads: Number of downloads by file name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads: Counter[str] = Counter()
        self.port = 0

    def pip_config(self) -> str:
        """Return pip's configuration for this index. pip keeps responses only of hosts that it trusts."""
        return f"[global]\nindex-url = http://127.0.0.1:{self.port}/simple/\ntrusted-host = 127.0.0.1\n"

    def page(self, name: str) -> str:
        """Return the page of a distribution."""
        files = [path.name for path in sorted(self.folder.rglob("*.whl"))]
        own = [file for file in files if canonicalize_name(parse_wheel_filename(file)[0]) == canonicalize_name(name)]
        return "".join(f'<a href="/files/{file.replace("+", "%2B")}">{file}</a>\n' for file in own)

    def file(self, name: str) -> Path | None:
        """Return a wheel, or None."""
        return next(self.folder.rglob(name), None)


@contextmanager
def serving(folder: Path) -> Iterator[Index]:
    """Serve the wheels below a folder."""
    index = Index(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is fixed by BaseHTTPRequestHandler
            parts = [part for part in self.path.replace("%2B", "+").split("/") if part]
            if len(parts) == 2 and parts[0] == "simple":
                self._send(index.page(parts[1]).encode(), "text/html", "no-cache")
            elif len(parts) == 2 and parts[0] == "files" and (path := index.file(parts[1])) is not None:
                index.downloads[path.name] += 1
                self._send(path.read_bytes(), "application/octet-stream", "max-age=365000000, immutable")
            else:
                self.send_error(404)

        def _send(self, content: bytes, kind: str, caching: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", caching)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *values: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.port = int(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()
