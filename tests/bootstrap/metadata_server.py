"""A minimal instance metadata service, version 2: a dictionary of paths behind a token."""

from __future__ import annotations

import http.server
import threading
import time
import uuid


class MetadataServer:
    """Serves `paths` (under latest/meta-data/) on 127.0.0.1; `tokens_given` counts PUTs.

    The path `/dynamic/...` is under latest/.
    """

    def __init__(self, instance_id: str, address: str = "127.0.0.1", **paths: str) -> None:
        self.paths: dict[str, str] = {
            "instance-id": instance_id,
            "instance-type": "c7i.2xlarge",
            "placement/availability-zone": "us-east-1a",
            "local-ipv4": address,
            "instance-life-cycle": "spot",
            "tags/instance/aws:autoscaling:groupName": "fleet",
            **paths,
        }
        self.tokens: set[str] = set()
        self.tokens_given = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                if self.path != "/latest/api/token" or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
                    return self.answer(400, "")
                token = uuid.uuid4().hex
                outer.tokens.add(token)
                outer.tokens_given += 1
                return self.answer(200, token)

            def do_GET(self) -> None:
                if self.headers.get("X-aws-ec2-metadata-token") not in outer.tokens:
                    return self.answer(401, "")
                value = outer.paths.get(self.path.removeprefix("/latest/meta-data/").removeprefix("/latest"))
                return self.answer(404, "") if value is None else self.answer(200, value)

            def answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if self.command == "PUT":  # the AWS SDK for Go (s5cmd) requires the TTL
                    self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def notice(self, seconds: float) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        self.paths["spot/instance-action"] = f'{{"action": "terminate", "time": "{when}"}}'

    def launched(self, seconds_ago: float) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))
        self.paths["/dynamic/instance-identity/document"] = f'{{"pendingTime": "{when}"}}'

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
