"""Patterns of EventBridge rules."""

from __future__ import annotations

from aws_cdk import aws_events as events
from aws_cdk import aws_s3 as s3


def object_created(bucket: s3.IBucket, *keys: str) -> events.EventPattern:
    """Return the pattern for the creation of objects whose keys match one of the wildcards."""
    wildcards = [{"wildcard": key} for key in keys]
    return events.EventPattern(
        source=["aws.s3"],
        detail_type=["Object Created"],
        detail={"bucket": {"name": [bucket.bucket_name]}, "object": {"key": wildcards}},
    )
