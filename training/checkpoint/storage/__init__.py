"""Storage backends: a directory, an S3 prefix, or a local tier in front of either; see `urls.open_backend`."""
