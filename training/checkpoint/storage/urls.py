"""Opens the storage backend for a URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from training.checkpoint.storage.backend import Backend
from training.errors import ConfigurationError


def open_backend(url: str) -> Backend:
    """Open ``s3://bucket/prefix``, a directory, or ``DIRECTORY,URL``: a local tier and a durable tier.

    Backends are imported on first use: importing boto3 takes about one second, and a directory does not need it.

    Raises:
        ConfigurationError: The scheme is unknown, the bucket is missing, or there are more than two tiers.
    """
    if "," in url:
        from training.checkpoint.storage.tiers import TieredBackend

        tiers = url.split(",")
        if len(tiers) != 2 or not all(tiers) or "://" in tiers[0]:
            raise ConfigurationError([f"{url}: not DIRECTORY,URL; specify a local directory and one durable store"])
        return TieredBackend(open_backend(tiers[0]), open_backend(tiers[1]))
    if "://" not in url:
        from training.checkpoint.storage.directory import DirectoryBackend

        return DirectoryBackend(Path(url))
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigurationError([f"{url}: neither a directory nor s3://bucket/prefix; specify one of these"])
    from training.checkpoint.storage.s3 import S3Backend

    return S3Backend(parts.netloc, parts.path.strip("/"))
