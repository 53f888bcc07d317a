"""Storage backends: a directory, an S3 prefix, or either with a local tier; see `urls.open_backend`."""
