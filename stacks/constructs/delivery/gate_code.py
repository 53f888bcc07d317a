"""The code that the pipeline's gates run: an asset of the deployed PipelineStack, not code from the merge.

A merge therefore cannot change the gate that reviews it. The asset changes only when the pipeline updates itself, after
a gate and an approval.
"""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from stacks.artifacts.bundles import BundleFile

FOLDER = "/tmp/gate"  # noqa: S108 - a path in a build container, which runs one build
VARIABLE = "GATE_CODE"
_PYTHON = f"{FOLDER}/.venv/bin/python"


class GateCode(Construct):
    """The gates' code in the bootstrap stack's bucket."""

    def __init__(self, scope: Construct, id_: str, *, bundle: BundleFile) -> None:
        super().__init__(scope, id_)
        self._asset = s3_assets.Asset(self, "Default", path=str(bundle.path))
        self._sha256 = bundle.sha256

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that locate the code, and prevent Python from importing the merge's modules.

        Source (2026-11): https://docs.python.org/3/using/cmdline.html#envvar-PYTHONSAFEPATH
        """
        return {VARIABLE: self._asset.s3_object_url, "PYTHONPATH": FOLDER, "PYTHONSAFEPATH": "1"}

    def install_commands(self) -> list[str]:
        """Return the commands that download, verify and install the code. They do not run code from the merge."""
        return [
            f'aws s3 cp --quiet "${VARIABLE}" {FOLDER}.zip',
            f'echo "{self._sha256}  {FOLDER}.zip" | sha256sum --check',
            f"python -m zipfile --extract {FOLDER}.zip {FOLDER}",
            f"python -m venv {FOLDER}/.venv",
            f"{_PYTHON} -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps"
            f" --requirement {FOLDER}/requirements.lock",
        ]

    def commands(self, file: str, templates: str, approve_from: int, stack: str | None) -> list[str]:
        """Return the commands that review a file and its templates as data, and export VERDICT and SUMMARY."""
        output = f"{FOLDER}/verdict.env"
        only = "" if stack is None else f" --stack {stack}"
        return [
            f"{_PYTHON} -m stacks deliver gate {file} --templates {templates}{only} --approve-from {approve_from}"
            f" --output {output}",
            f"export VERDICT=\"$(sed -n 's/^verdict=//p' {output})\" SUMMARY=\"$(sed -n 's/^summary=//p' {output})\"",
        ]

    def grant(self) -> iam.PolicyStatement:
        """Return the permission to read the code."""
        arn = f"{self._asset.bucket.bucket_arn}/{self._asset.s3_object_key}"
        return iam.PolicyStatement(sid="ReadGate", actions=["s3:GetObject"], resources=[arn])
