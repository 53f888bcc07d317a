"""Copies large objects from S3 in ranges, many at a time, and goes on inside an object after an interruption."""
