"""The checkpoint benchmark's bucket, and a plain parallel download for comparison."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks.servers.local_s3 import CONNECTIONS, s3_client

BUCKET = "checkpoints"


def plain_download(keys: list[str]) -> int:
    """Read objects from the bucket into memory, several at a time; return their total bytes."""
    client = s3_client()

    def read(key: str) -> int:
        return len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return sum(pool.map(read, keys))
