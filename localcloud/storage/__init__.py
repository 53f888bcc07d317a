"""Storage services beside S3 and EBS: FSx for Lustre and Data Lifecycle Manager."""
