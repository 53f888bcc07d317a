"""Identity and authorization: access keys, role sessions and IAM policy evaluation."""
