"""Membership in generations: control records in S3, heartbeats, and pings between supervisors."""
