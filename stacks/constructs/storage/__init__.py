"""Constructs for the StorageStack: buckets, volumes, snapshots and Lustre."""
