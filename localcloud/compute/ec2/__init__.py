"""EC2 API operations on instances and volumes, and queries about the account."""
