from __future__ import annotations

from tests.training.conftest import bucket, s3_endpoint, s3_environment

__all__ = ["bucket", "s3_endpoint", "s3_environment"]
