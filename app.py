"""The CDK app, which synthesizes a deployment's stacks: `cdk deploy TrainingStack -c config=config/demo.yaml`.

The CDK's template validation, which takes longer than everything else here, is off unless `CDK_VALIDATION=true`. The
policy gate always runs it (docs/adr/0007-template-validation-in-the-gate.md).
"""

from __future__ import annotations

import os
import sys

# With traces, the CDK's command line prints a place in its own program above each warning. The program that evaluates
# the constructs starts with the import. Source (2026-11):
# https://github.com/aws/aws-cdk/blob/main/packages/aws-cdk-lib/core/lib/annotations.ts
os.environ.setdefault("CDK_DISABLE_STACK_TRACE", "1")

import aws_cdk as cdk  # noqa: E402

from stacks.deployment import synthesise  # noqa: E402
from stacks.errors import BundleError, ConfigError  # noqa: E402

if __name__ == "__main__":
    try:
        synthesise(cdk.App(builtin_cloud_formation_validation=os.environ.get("CDK_VALIDATION") == "true"))
    except (BundleError, ConfigError) as error:
        sys.exit(str(error))
