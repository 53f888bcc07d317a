"""FSx for Lustre and Data Lifecycle Manager."""
