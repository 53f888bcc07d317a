"""Fixtures of the trainer's tests."""

from __future__ import annotations

from tests.training.conftest import bucket, gangs, s3_endpoint, s3_environment, tiny_config, tiny_dataset

__all__ = ["bucket", "gangs", "s3_endpoint", "s3_environment", "tiny_config", "tiny_dataset"]
