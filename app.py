"""The CDK app, which synthesizes a deployment's stacks: `cdk deploy TrainingStack -c config=config/demo.yaml`.

The CDK's template validation, which takes longer than everything else here, is off unless `CDK_VALIDATION=true`. The
policy gate always runs it (docs/adr/0007-template-validation-in-the-gate.md).
"""

from __future__ import annotations

import os
import sys

import aws_cdk as cdk

from stacks.deployment import synthesise
from stacks.errors import BundleError, ConfigError

if __name__ == "__main__":
    try:
        synthesise(cdk.App(builtin_cloud_formation_validation=os.environ.get("CDK_VALIDATION") == "true"))
    except (BundleError, ConfigError) as error:
        sys.exit(str(error))
