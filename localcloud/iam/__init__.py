"""Evaluates IAM policies for the calls that reach the local cloud."""
