"""Makes every S3 request path-style, and keeps its path as it was sent.

Not here: what the request asks for (`protocol`).
"""

from __future__ import annotations

import re
from typing import Any

# Where the host is kept as it was sent: the signature covers it.
SENT_HOST = "localcloud.sent_host"
# bucket.localhost:4600, bucket.s3.amazonaws.com, bucket.s3.us-east-1.amazonaws.com, bucket.s3-us-west-2.amazonaws.com
VIRTUAL_HOST = re.compile(
    r"^(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\.(?:localhost|s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com)(?::\d+)?$"
)
# Hosts that the pattern would read as a bucket of another endpoint.
REGIONAL = re.compile(r"^s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com(?::\d+)?$")


def normalise(environ: dict[str, Any]) -> None:
    """Let the path of a WSGI request be the one that was sent (still encoded), with a bucket in the host moved into it.

    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html (2026-11).
    """
    # moto matches S3 keys against the encoded path, and looks for it under this name.
    environ.setdefault("RAW_URI", environ.get("REQUEST_URI", ""))
    host = environ.get("HTTP_HOST", "")
    match = VIRTUAL_HOST.match(host)
    if match is None or REGIONAL.match(host):
        return
    bucket = match.group("bucket")
    environ[SENT_HOST] = host
    environ["PATH_INFO"] = f"/{bucket}{environ.get('PATH_INFO', '')}"
    environ["RAW_URI"] = f"/{bucket}{environ['RAW_URI']}"
    environ["HTTP_HOST"] = "localhost" + (f":{host.rpartition(':')[2]}" if ":" in host else "")
