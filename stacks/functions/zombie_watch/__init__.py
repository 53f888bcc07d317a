"""Finds resources that cost money without a run, for `trainstack zombies` and for a daily Lambda function."""
