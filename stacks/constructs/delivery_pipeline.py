"""The pipeline: CDK Pipelines on CodePipeline V2, which checks a commit, updates itself, and deploys stage after stage.

Before each stage a gate of our own compares the stage with what is deployed (`python -m stacks deliver gate`). The
stage with the manual approval is entered only when the gate says so: an entry condition on the gate's variable, which
CodePipeline evaluates itself, so no function approves anything. The library's own check for broadened permissions is
not used: it approves by polling from a function, and misses more than it sees (aws/aws-cdk, 32482 and 33061).

Sources (2026-11): https://docs.aws.amazon.com/codepipeline/latest/userguide/stage-conditions.html,
https://docs.aws.amazon.com/codepipeline/latest/userguide/rule-reference-VariableCheck.html and stage-rollback.html
there.
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

from stacks.bootstrap_roles import LOOKUP, role_arn
from stacks.config import DeploymentConfig
from stacks.config.delivery import PipelineConfig
from stacks.constructs.accepted_findings import accept

ASK = "ask"
"""What the gate's variable VERDICT holds when a person must approve."""
CLI_VERSION_FILE = Path(__file__).resolve().parents[2] / "package.json"
PYTHON = ".venv/bin/python"
# The versions that the project is tested on. Source of what an image has (2026-11):
# https://docs.aws.amazon.com/codebuild/latest/userguide/available-runtimes.html
RUNTIMES = codebuild.BuildSpec.from_object(
    {"phases": {"install": {"runtime-versions": {"python": "3.11", "nodejs": "22"}}}}
)
# What of the library's grants cdk-nag finds wide.
LIBRARY_GRANTS = (
    ("Reads and writes by prefix of the call's name, in the artifact bucket only", r"Action::(s3|kms):\w+\*"),
    ("Artifacts are named by the run", r"Resource::<Artifacts\w*\.Arn>/\*"),
    ("Log streams and reports are named by the build", r"Resource::arn:.*:(logs|codebuild):.*\*"),
    ("Calls that the library grants without naming the stack, bucket or project that they are for", r"Resource::\*"),
    ("Roles of the CDK's bootstrap only, which the condition on their tag names", r"Resource::arn:\*:iam::.*:role/\*"),
)


@dataclass(frozen=True)
class DeliveryStage:
    """A deployment that the pipeline carries out: its file, and its name in the pipeline."""

    file: str
    name: str
    config: DeploymentConfig


def stage_name(config: DeploymentConfig) -> str:
    """Return the name of a deployment's stage: what tells deployments apart."""
    return "-".join(part for part in (config.name, config.region, config.account) if part)


class DeliveryPipeline(Construct):
    """Pipeline and its build projects.

    Args:
        scope: The pipeline's stack.
        id_: Construct id.
        config: The `delivery.pipeline` section.
        own_file: Deployment file that holds that section; the synthesis reads it.
        stages: Deployments in order.
        add_stacks: Adds a deployment's stacks to a stage.
        artifacts: Encrypted bucket for what passes between steps.
        log_group: Where the builds write.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: PipelineConfig,
        own_file: str,
        stages: Sequence[DeliveryStage],
        add_stacks: Callable[[Construct, DeploymentConfig], None],
        artifacts: s3.IBucket,
        log_group: logs.ILogGroup,
    ) -> None:
        super().__init__(scope, id_)
        self._config = config
        self._source = pipelines.CodePipelineSource.connection(
            config.repository, config.branch, connection_arn=config.connection_arn
        )
        self._pipeline = pipelines.CodePipeline(
            self,
            "Default",
            synth=self._synth(own_file, stages),
            artifact_bucket=artifacts,
            # Named, since the default is still V1, which has neither conditions nor roll-back.
            pipeline_type=codepipeline.PipelineType.V2,
            # A commit that waits at the gate gives way to a newer one; two never deploy the same stage at once.
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
        verdicts = {stage.name: self._add_stage(stage, add_stacks) for stage in stages}
        self._pipeline.build_pipeline()
        self.pipeline = self._pipeline.pipeline
        """The pipeline itself."""
        self._grant_connection()
        self._set_conditions(verdicts)
        self._wait_for_rights()
        self._accept_findings()

    def _step(self, id_: str, commands: Sequence[str], **settings: object) -> pipelines.CodeBuildStep:
        return pipelines.CodeBuildStep(
            id_,
            input=self._source,
            install_commands=["make install"],
            commands=list(commands),
            **settings,  # type: ignore[arg-type]
        )

    def _synth(self, own_file: str, stages: Sequence[DeliveryStage]) -> pipelines.CodeBuildStep:
        """Return the step that makes the templates, after those that may refuse the commit."""
        large = codebuild.BuildEnvironment(compute_type=codebuild.ComputeType.LARGE)
        files = " ".join(stage.file for stage in stages)
        synth = self._step("Synth", [f"make synth CONFIG={own_file}"], primary_output_directory="build/cdk.out")
        for id_, commands in (
            ("Check", ["make check", f"{PYTHON} -m stacks deliver check {files}"]),
            ("Test", ["make test"]),
            ("Policy", ["make policy"]),
        ):
            synth.add_step_dependency(self._step(id_, commands, build_environment=large))
        return synth

    def _add_stage(self, stage: DeliveryStage, add_stacks: Callable[[Construct, DeploymentConfig], None]) -> str:
        """Add gate, approval and deploy of a stage; return the reference to the gate's verdict."""
        gate = self._gate(stage)
        verdict = gate.exported_variable("VERDICT")
        self._pipeline.add_wave(f"Gate-{stage.name}", pre=[gate])
        # The comment names both variables: the library exports those only that a step refers to.
        words = f"The gate says {verdict}: {gate.exported_variable('SUMMARY')}. Its log has every line."
        self._pipeline.add_wave(f"Approve-{stage.name}", pre=[pipelines.ManualApprovalStep("Approve", comment=words)])
        root = cdk.Stage.of(self)
        assert root is not None, "a pipeline is synthesised in an app"
        target = cdk.Stage(
            root,
            f"Deploy-{stage.name}",
            env=cdk.Environment(account=stage.config.account, region=stage.config.region),
        )
        add_stacks(target, stage.config)
        self._pipeline.add_stage(target)
        return verdict

    def _gate(self, stage: DeliveryStage) -> pipelines.CodeBuildStep:
        """Return the step that says what a deploy of the stage would do, and whether a person must agree."""
        stack, found = cdk.Stack.of(self), "build/verdict.env"
        reader = role_arn(
            *LOOKUP,
            partition=stack.partition,
            account=stage.config.account or stack.account,
            region=stage.config.region,
        )
        return self._step(
            f"Diff-{stage.name}",
            [
                f"{PYTHON} -m stacks deliver gate {stage.file} --approve-from {self._config.approve_from}"
                f" --output {found}",
                f"export VERDICT=\"$(sed -n 's/^verdict=//p' {found})\" SUMMARY=\"$(sed -n 's/^summary=//p' {found})\"",
            ],
            role_policy_statements=[
                iam.PolicyStatement(sid="ReadStage", actions=["sts:AssumeRole"], resources=[reader])
            ],
        )

    def _grant_connection(self) -> None:
        """Grant the use of the connection under both names of the service: which one is asked for depends on its age.

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
        """Skip approvals that the gate does not ask for, and roll a stage back that fails.

        As overrides: the library's pipeline has no place for conditions of stages.
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
            # "Skip" is what happens when the rule does not hold.
            resource.add_property_override(
                f"Stages.{index[f'Approve-{name}']}.BeforeEntry", {"Conditions": [{"Result": "SKIP", "Rules": [rule]}]}
            )
            resource.add_property_override(f"Stages.{index[f'Deploy-{name}']}.OnFailure", {"Result": "ROLLBACK"})

    def _wait_for_rights(self) -> None:
        """Make the pipeline after its role's policy (the library would name the role too, which its ARN implies)."""
        policy = self.pipeline.role.node.find_child("DefaultPolicy").node.default_child
        resource = self.pipeline.node.default_child
        assert isinstance(policy, iam.CfnPolicy) and isinstance(resource, codepipeline.CfnPipeline)
        resource.add_override("DependsOn", [cdk.Stack.of(self).get_logical_id(policy)])
        # cfn-lint's E3703 takes a hint on the style of a function (I1022), inside an action's configuration that the
        # library writes, for an error of that configuration.
        resource.add_metadata("cfn-lint", {"config": {"ignore_checks": ["E3703"]}})

    def _accept_findings(self) -> None:
        """Say why the library's roles and projects are as they are where a policy checker wants them otherwise."""
        for policy in (each for each in self.node.find_all() if isinstance(each, iam.CfnPolicy)):
            for reason, part in LIBRARY_GRANTS:
                accept(policy, "AwsSolutions-IAM5", reason, applies_to=[part])
            if "/Assets/" in policy.node.path:
                reason = "The library lets its one publishing role start builds without naming its project"
                accept(policy, "CKV_AWS_111", reason)


def _cli_version() -> str:
    """Return the version of the CDK's command line that the project pins."""
    version: str = json.loads(CLI_VERSION_FILE.read_text())["devDependencies"]["aws-cdk"]
    return version
