"""The delivery pipeline, built with CDK Pipelines on CodePipeline V2.

The pipeline checks a commit, updates itself, and deploys one stage after another. Before its own update and before each
stage, a gate compares the templates with the deployed stacks (`python -m stacks deliver gate`). The gate runs the code
of the deployed pipeline and treats the merge's files and templates as data. An entry condition on the gate's variable
determines whether manual approval is needed. CodePipeline evaluates the condition itself, without a function. The
pipeline does not use the library's check for broadened permissions, which polls for approval from a function and misses
more changes than it detects (aws/aws-cdk issues 32482 and 33061). It does not use the library's self-mutation either,
because that step precedes all gates.

Sources (2026-11): https://docs.aws.amazon.com/codepipeline/latest/userguide/stage-conditions.html,
https://docs.aws.amazon.com/codepipeline/latest/userguide/rule-reference-VariableCheck.html and stage-rollback.html
in the same guide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_codepipeline as codepipeline
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import pipelines
from constructs import Construct

from stacks.artifacts.bundles import BundleFile
from stacks.config import DeploymentConfig
from stacks.config.delivery import PipelineConfig
from stacks.constructs.cdk_bootstrap_roles import Duty, qualifier_of, role_arn
from stacks.constructs.delivery.gate_code import GateCode
from stacks.constructs.lambda_function import depend_on_policy
from stacks.constructs.suppressions import suppress

ASK = "ask"
"""The value of the gate's VERDICT variable if the change requires manual approval."""
CLI_VERSION_FILE = Path(__file__).resolve().parents[3] / "package.json"
PYTHON = ".venv/bin/python"
OWN = "Pipeline"
"""The name of the pipeline's own gate, approval and update. It is unique because deployment names are lowercase."""
ASSEMBLIES = "assemblies"
# The versions that the project is tested with.
# Source (2026-11): https://docs.aws.amazon.com/codebuild/latest/userguide/available-runtimes.html
RUNTIMES = codebuild.BuildSpec.from_object(
    {"phases": {"install": {"runtime-versions": {"python": "3.11", "nodejs": "22"}}}}
)
# Grants that CDK Pipelines creates and that cdk-nag reports as too broad.
LIBRARY_GRANTS = (
    ("The action prefixes cover only reads and writes in the artifact bucket", r"Action::(s3|kms):\w+\*"),
    ("Each pipeline run determines the names of its artifacts", r"Resource::<Artifacts\w*\.Arn>/\*"),
    ("Each build determines the names of its log streams and reports", r"Resource::arn:.*:(logs|codebuild):.*\*"),
    ("CDK Pipelines grants these calls without naming the stack, bucket or project", r"Resource::\*"),
    ("A condition on the tag limits the grant to the CDK's bootstrap roles", r"Resource::arn:\*:iam::.*:role/\*"),
)


@dataclass(frozen=True)
class DeliveryStage:
    """A deployment in the pipeline, with its file and its stage name."""

    file: str
    name: str
    config: DeploymentConfig


def stage_name(config: DeploymentConfig) -> str:
    """Return a deployment's stage name, which is unique among deployments."""
    return "-".join(part for part in (config.name, config.region, config.account) if part)


class DeliveryPipeline(Construct):
    """The pipeline and its build projects.

    Args:
        scope: The pipeline's stack.
        id_: The construct id.
        config: The `delivery.pipeline` section.
        own_file: The deployment file that contains the section. The synthesis step reads it.
        stages: The deployments, in deploy order.
        gate_code: The code of the gates.
        add_stacks: Function that adds a deployment's stacks to a stage.
        artifacts: The encrypted bucket that passes artifacts between steps.
        log_group: The log group for the builds.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: PipelineConfig,
        own_file: str,
        stages: Sequence[DeliveryStage],
        gate_code: BundleFile,
        add_stacks: Callable[[Construct, DeploymentConfig], None],
        artifacts: s3.IBucket,
        log_group: logs.ILogGroup,
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        self._gate_code = GateCode(self, "GateCode", bundle=gate_code)
        self._source = pipelines.CodePipelineSource.connection(
            config.repository, config.branch, connection_arn=config.connection_arn
        )
        self._synth_step = self._synth(own_file, stages)
        self._assemblies = self._synth_step.add_output_directory(f"build/{ASSEMBLIES}")
        self._pipeline = pipelines.CodePipeline(
            self,
            "Default",
            synth=self._synth_step,
            self_mutation=False,
            artifact_bucket=artifacts,
            # V2 is explicit because the default is still V1, which supports neither conditions nor rollback.
            pipeline_type=codepipeline.PipelineType.V2,
            # A newer commit supersedes one that waits for approval. Two commits never deploy the same stage at once.
            execution_mode=codepipeline.ExecutionMode.SUPERSEDED,
            cross_account_keys=True,
            publish_assets_in_parallel=False,
            use_pipeline_role_for_actions=True,
            cli_version=_cli_version(),
            code_build_defaults=pipelines.CodeBuildOptions(
                build_environment=codebuild.BuildEnvironment(
                    build_image=codebuild.LinuxBuildImage.STANDARD_7_0, compute_type=codebuild.ComputeType.MEDIUM
                ),
                partial_build_spec=RUNTIMES,
                timeout=cdk.Duration.hours(1),
                logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=log_group)),
            ),
        )
        verdicts = {OWN: self._add_update(own_file)}
        verdicts |= {stage.name: self._add_stage(stage, add_stacks) for stage in stages}
        self._pipeline.build_pipeline()
        self.pipeline = self._pipeline.pipeline
        """The CodePipeline pipeline."""
        self._grant_connection()
        self._set_conditions(verdicts)
        self._depend_on_role_policy()
        self._suppress_findings()

    def _step(self, id_: str, commands: Sequence[str], **settings: object) -> pipelines.CodeBuildStep:
        settings.setdefault("install_commands", ["make install"])
        return pipelines.CodeBuildStep(id_, input=self._source, commands=list(commands), **settings)  # type: ignore[arg-type]

    def _synth(self, own_file: str, stages: Sequence[DeliveryStage]) -> pipelines.CodeBuildStep:
        """Return the step that synthesizes the templates. It runs after the steps that can reject the commit."""
        large = codebuild.BuildEnvironment(compute_type=codebuild.ComputeType.LARGE)
        files = " ".join(stage.file for stage in stages)
        commands = [
            f"make synth CONFIG={own_file}",
            f"mkdir -p build/{ASSEMBLIES}/{OWN}",
            f"cp -r build/cdk.out build/{ASSEMBLIES}/{OWN}/{Path(own_file).name}",
            'export PATH="$PWD/.venv/bin:$PATH"',
        ]
        for stage in stages:
            commands += [
                f"python -m stacks bundle {stage.file} --locked",
                f"node_modules/.bin/cdk synth --quiet --context config={stage.file}"
                f" --output build/{ASSEMBLIES}/{stage.name}/{Path(stage.file).name}",
            ]
        synth = self._step("Synth", commands, primary_output_directory="build/cdk.out")
        for id_, commands in (
            ("Check", ["make check", f"{PYTHON} -m stacks deliver check {files}"]),
            ("Test", ["make test"]),
            ("Policy", ["make policy"]),
        ):
            synth.add_step_dependency(self._step(id_, commands, build_environment=large))
        return synth

    def _add_stage(self, stage: DeliveryStage, add_stacks: Callable[[Construct, DeploymentConfig], None]) -> str:
        """Add a stage with its gate, approval and deploy, and return the reference to the gate's verdict."""
        verdict = self._add_gate(stage.name, stage.file, account=stage.config.account, region=stage.config.region)
        root = cdk.Stage.of(self)
        assert root is not None, "a pipeline is synthesized in an app"
        target = cdk.Stage(
            root,
            f"Deploy-{stage.name}",
            env=cdk.Environment(account=stage.config.account, region=stage.config.region),
        )
        add_stacks(target, stage.config)
        self._pipeline.add_stage(target)
        return verdict

    def _add_update(self, own_file: str) -> str:
        """Add the pipeline's own gate, approval and update, and return the reference to the gate's verdict.

        CodePipeline starts again with the same commit if the update changes the pipeline.
        """
        stack = cdk.Stack.of(self)
        verdict = self._add_gate(OWN, own_file, account=None, region=stack.region, only=stack.node.id)
        duties: tuple[Duty, ...] = ("deploy", "file-publishing")
        update = self._step(
            "Update",
            [
                'export PATH="$PWD/.venv/bin:$PATH"',
                f"node_modules/.bin/cdk deploy {stack.node.id} --app {ASSEMBLIES}/{OWN}/{Path(own_file).name}"
                " --exclusively --require-approval never",
            ],
            additional_inputs={ASSEMBLIES: self._assemblies},
            role_policy_statements=[
                iam.PolicyStatement(
                    sid="UpdatePipeline",
                    actions=["sts:AssumeRole"],
                    resources=[self._bootstrap_role(duty, None, stack.region) for duty in duties],
                )
            ],
        )
        self._pipeline.add_wave(f"Update-{OWN}", pre=[update])
        return verdict

    def _add_gate(self, name: str, file: str, *, account: str | None, region: str, only: str | None = None) -> str:
        """Add a gate and an approval, and return the reference to the gate's verdict.

        Args:
            name: The name of the gate.
            file: The deployment file.
            account: The account of the deployed stacks; None for the pipeline's account.
            region: The region of the deployed stacks.
            only: The stack to review; None for all stacks in the file.
        """
        gate = self._step(
            f"Diff-{name}",
            self._gate_code.commands(file, f"{ASSEMBLIES}/{name}", self._config.approve_from, only),
            install_commands=self._gate_code.install_commands(),
            env=self._gate_code.environment,
            additional_inputs={ASSEMBLIES: self._assemblies},
            role_policy_statements=[
                iam.PolicyStatement(
                    sid="ReadStage",
                    actions=["sts:AssumeRole"],
                    resources=[self._bootstrap_role("lookup", account, region)],
                ),
                self._gate_code.grant(),
            ],
        )
        verdict = gate.exported_variable("VERDICT")
        self._pipeline.add_wave(f"Gate-{name}", pre=[gate])
        # The comment contains both variables because the library exports only variables that a step refers to.
        comment = f"Gate verdict: {verdict}: {gate.exported_variable('SUMMARY')}. See its log for the full review."
        self._pipeline.add_wave(f"Approve-{name}", pre=[pipelines.ManualApprovalStep("Approve", comment=comment)])
        return verdict

    def _bootstrap_role(self, duty: Duty, account: str | None, region: str) -> str:
        stack = cdk.Stack.of(self)
        return role_arn(
            duty, qualifier_of(self), partition=stack.partition, account=account or stack.account, region=region
        )

    def _grant_connection(self) -> None:
        """Grant use of the connection under both service names. The connection's age determines which name applies.

        Source (2026-11): https://docs.aws.amazon.com/dtconsole/latest/userguide/rename.html
        """
        self.pipeline.add_to_role_policy(
            iam.PolicyStatement(
                sid="UseConnection",
                actions=["codeconnections:UseConnection", "codestar-connections:UseConnection"],
                resources=[self._config.connection_arn],
            )
        )

    def _set_conditions(self, verdicts: dict[str, str]) -> None:
        """Skip approvals that the gate does not request, and roll back stages that fail.

        Overrides are needed because CDK Pipelines does not provide an API for stage conditions.
        """
        resource = self.pipeline.node.default_child
        assert isinstance(resource, codepipeline.CfnPipeline)
        index = {stage.stage_name: number for number, stage in enumerate(self.pipeline.stages)}
        for name, verdict in verdicts.items():
            rule = {
                "Name": "AskedFor",
                "RuleTypeId": {"Category": "Rule", "Owner": "AWS", "Provider": "VariableCheck", "Version": "1"},
                "Configuration": {"Variable": verdict, "Value": ASK, "Operator": "EQ"},
            }
            # The result applies if the rule is not met. CodePipeline then skips the stage.
            resource.add_property_override(
                f"Stages.{index[f'Approve-{name}']}.BeforeEntry", {"Conditions": [{"Result": "SKIP", "Rules": [rule]}]}
            )
            if name != OWN:
                resource.add_property_override(f"Stages.{index[f'Deploy-{name}']}.OnFailure", {"Result": "ROLLBACK"})

    def _depend_on_role_policy(self) -> None:
        """Create the pipeline after its role's policy. The role's ARN already implies a dependency on the role."""
        resource = self.pipeline.node.default_child
        assert isinstance(resource, codepipeline.CfnPipeline)
        depend_on_policy(resource, self.pipeline.role)
        # cfn-lint's E3703 reports a style hint about a function (I1022) as an error. The library writes that function
        # into an action's configuration.
        resource.add_metadata("cfn-lint", {"config": {"ignore_checks": ["E3703"]}})

    def _suppress_findings(self) -> None:
        for policy in (each for each in self.node.find_all() if isinstance(each, iam.CfnPolicy)):
            for reason, part in LIBRARY_GRANTS:
                suppress(policy, "AwsSolutions-IAM5", reason, applies_to=[part])
            if "/Assets/" in policy.node.path:
                reason = "CDK Pipelines lets its publishing role start builds without naming the project"
                suppress(policy, "CKV_AWS_111", reason)


def _cli_version() -> str:
    """Return the pinned version of the CDK CLI."""
    version: str = json.loads(CLI_VERSION_FILE.read_text())["devDependencies"]["aws-cdk"]
    return version
