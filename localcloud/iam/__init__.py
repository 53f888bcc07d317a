"""Identity and authorisation: access keys, role sessions and IAM policy evaluation."""
