"""Resource types that are accepted although nothing emulates them, each with the reason."""

from __future__ import annotations

ACCEPTED_TYPES = {
    "AWS::CDK::Metadata": "describes the CDK app to AWS; makes nothing",
    "AWS::CloudFormation::WaitConditionHandle": "a placeholder without a signal here",
}
