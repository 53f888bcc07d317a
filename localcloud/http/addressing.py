"""Converts S3 requests to path style and keeps the path encoded as the client sent it."""

from __future__ import annotations

import re
from typing import Any

# Environ key for the original host, which the signature covers.
SENT_HOST = "localcloud.sent_host"
# bucket.localhost:4600, bucket.s3.amazonaws.com, bucket.s3.us-east-1.amazonaws.com, bucket.s3-us-west-2.amazonaws.com
VIRTUAL_HOST = re.compile(
    r"^(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\.(?:localhost|s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com)(?::\d+)?$"
)
# Regional endpoints, which also match VIRTUAL_HOST.
REGIONAL = re.compile(r"^s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com(?::\d+)?$")


def normalise(environ: dict[str, Any]) -> None:
    """Move the bucket name from a WSGI request's host into its path, which stays encoded.

    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html (2026-11).
    """
    # moto matches S3 keys against the encoded path under this key.
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
