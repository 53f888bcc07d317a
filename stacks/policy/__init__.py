"""The policy gate: runs cfn-lint, cdk-nag (two rule packs) and checkov on every template of every deployment file.

It also compares the policies of every role with AWS's Service Authorization Reference.
"""
