"""Finds billed resources that no run uses, for `trainstack zombies` and for a daily Lambda function."""
