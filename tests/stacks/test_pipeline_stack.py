"""PipelineStack: order of the pipeline's actions, approvals, and trust policies of the GitHub roles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from localcloud.iam.policy import Access, verdict
from stacks.artifacts.bundles import function_bundle, gate_bundle

from .conftest import CONFIGS, ROOT, STACKS, Assembly, Synthesis, findings
from .test_permissions_boundary import ACCOUNT, CONTEXT, arns_of, plain

EXAMPLE = ROOT / "config" / "delivery" / "production.yaml"
STACK = "PipelineStack"
STAGES = ("minimal-us-east-1", "production-us-east-1")


@pytest.fixture(scope="module")
def delivered(synthesis: Synthesis) -> Assembly:
    return synthesis.run(EXAMPLE, "delivered")


@pytest.fixture(scope="module")
def pipeline(delivered: Assembly) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = delivered.one(STACK, "AWS::CodePipeline::Pipeline")["Properties"]["Stages"]
    return stages


def named(pipeline: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(stage for stage in pipeline if stage["Name"] == name)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_pipeline_by_default(synthesis: Synthesis, name: str) -> None:
    assert not (synthesis.of(name).directory / f"{STACK}.template.json").exists()


def test_stage_has_the_templates_of_a_local_deploy(delivered: Assembly, synthesis: Synthesis) -> None:
    folder = delivered.directory / f"assembly-Deploy-{STAGES[0]}"
    for stack in STACKS:
        (template,) = folder.glob(f"*{stack}*.template.json")
        assert template.read_text() == synthesis.of("minimal").text(stack)


def test_order_of_checks_gates_and_updates(pipeline: list[dict[str, Any]]) -> None:
    names = [stage["Name"] for stage in pipeline]
    each = [name for stage in STAGES for name in (f"Gate-{stage}", f"Approve-{stage}", f"Deploy-{stage}")]
    assert names == ["Source", "Build", "Assets", "Gate-Pipeline", "Approve-Pipeline", "Update-Pipeline", *each]
    order = {action["Name"]: action["RunOrder"] for action in named(pipeline, "Build")["Actions"]}
    assert order == {"Check": 1, "Test": 1, "Policy": 1, "Synth": 2}


@pytest.mark.parametrize("stage", ["Pipeline", *STAGES])
def test_approval_depends_on_the_gate_of_the_stage(pipeline: list[dict[str, Any]], stage: str) -> None:
    (gate,) = named(pipeline, f"Gate-{stage}")["Actions"]
    approval = named(pipeline, f"Approve-{stage}")
    (condition,) = approval["BeforeEntry"]["Conditions"]
    (rule,) = condition["Rules"]
    assert condition["Result"] == "SKIP"
    assert rule["RuleTypeId"]["Provider"] == "VariableCheck"
    variable = f"#{{{gate['Namespace']}.VERDICT}}"
    assert rule["Configuration"] == {"Variable": variable, "Value": "ask", "Operator": "EQ"}
    assert [action["ActionTypeId"]["Category"] for action in approval["Actions"]] == ["Approval"]


def test_gate_exports_the_variable_of_the_condition(delivered: Assembly) -> None:
    builds = [item["Properties"] for item in delivered.of_type(STACK, "AWS::CodeBuild::Project").values()]
    gates = [each["Source"]["BuildSpec"] for each in builds if "deliver gate" in str(each["Source"]["BuildSpec"])]
    assert len(gates) == 1 + len(STAGES)
    assert sum("--stack PipelineStack" in spec for spec in gates) == 1
    for spec in gates:
        assert '"exported-variables": [\n      "VERDICT",\n      "SUMMARY"\n    ]' in spec
        assert "--approve-from 30" in spec and "export VERDICT=" in spec


def builds(assembly: Assembly, text: str) -> dict[str, dict[str, Any]]:
    """Return the projects whose build specification contains a text, by logical ID."""
    found = assembly.of_type(STACK, "AWS::CodeBuild::Project").items()
    return {name: one["Properties"] for name, one in found if text in str(one["Properties"]["Source"]["BuildSpec"])}


def test_gates_run_the_code_of_the_deployed_pipeline(delivered: Assembly) -> None:
    """The merge is data for a gate: nothing of it is installed or run, or imported from the current folder."""
    code = gate_bundle(delivered.directory)
    for gate in builds(delivered, "deliver gate").values():
        spec = json.loads(gate["Source"]["BuildSpec"])
        commands = [*spec["phases"]["install"]["commands"], *spec["phases"]["build"]["commands"]]
        assert not [one for one in commands if "make" in one.split() or ".venv" in one.replace("/tmp/gate/.venv", "")]
        assert f'echo "{code.sha256}  /tmp/gate.zip" | sha256sum --check' in commands
        (review,) = [one for one in commands if "deliver gate" in one]
        assert review.startswith("/tmp/gate/.venv/bin/python -m stacks deliver gate config/")
        assert " --templates assemblies/" in review
        variables = {one["Name"]: one["Value"] for one in gate["Environment"]["EnvironmentVariables"]}
        assert variables["PYTHONSAFEPATH"] == "1" and variables["PYTHONPATH"] == "/tmp/gate"
        assert "s3://cdk-hnb659fds-assets-" in str(variables["GATE_CODE"])


def test_only_the_update_after_the_approval_can_change_the_pipeline(
    delivered: Assembly, pipeline: list[dict[str, Any]]
) -> None:
    policies = delivered.of_type(STACK, "AWS::IAM::Policy")
    deployers = {name for name, _, resource in grants(delivered) if "-deploy-role-" in resource}
    roles = {one["Ref"] for name in deployers for one in policies[name]["Properties"]["Roles"]}
    ((update, properties),) = builds(delivered, "cdk deploy").items()
    # The pipeline's own role deploys the stages after their gates.
    own = delivered.one(STACK, "AWS::CodePipeline::Pipeline")["Properties"]["RoleArn"]["Fn::GetAtt"][0]
    expected = {own, properties["ServiceRole"]["Fn::GetAtt"][0]}
    assert {role for role in roles if not role.startswith("Github")} == expected
    (action,) = named(pipeline, "Update-Pipeline")["Actions"]
    assert action["Configuration"]["ProjectName"] == {"Ref": update}


def test_changed_training_code_does_not_change_the_pipeline(delivered: Assembly) -> None:
    """A merge that changes only training code must not require approval for an update of the pipeline."""
    text = (delivered.directory / f"{STACK}.template.json").read_text()
    own = {gate_bundle(delivered.directory).sha256, function_bundle("drift_watch", delivered.directory).sha256}
    files = json.loads((delivered.directory / f"{STACK}.assets.json").read_text())["files"]
    assets = {digest for digest, one in files.items() if one["source"]["path"].endswith(".zip")}
    assert len(assets) == 2
    assert set(re.findall(r"\b[0-9a-f]{64}\b", text)) <= own | assets


def test_gate_code_reviews_without_the_repository(delivered: Assembly, tmp_path: Path) -> None:
    bundle = gate_bundle(tmp_path)
    with zipfile.ZipFile(bundle.path) as archive:
        archive.extractall(tmp_path / "gate")
    program = (
        "import sys, stacks.__main__, stacks.delivery.actions\n"
        f"code = stacks.__main__.main(['diff', 'config/delivery/production.yaml', '--stack', 'PipelineStack',\n"
        f"    '--against', {str(delivered.directory)!r}, '--templates', {str(delivered.directory)!r}])\n"
        "files = [one.__file__ for one in sys.modules.values() if getattr(one, '__file__', None)]\n"
        f"print([one for one in files if one.startswith({str(ROOT)!r}) and 'site-packages' not in one], code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "gate"), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr


@pytest.mark.parametrize("stage", STAGES)
def test_failed_stage_is_rolled_back(pipeline: list[dict[str, Any]], stage: str) -> None:
    assert named(pipeline, f"Deploy-{stage}")["OnFailure"] == {"Result": "ROLLBACK"}


def test_pipeline_is_v2_and_may_use_the_connection(delivered: Assembly) -> None:
    assert delivered.one(STACK, "AWS::CodePipeline::Pipeline")["Properties"]["PipelineType"] == "V2"
    actions = [action for _, action, resource in grants(delivered) if ":connection/" in resource]
    assert {"codeconnections:UseConnection", "codestar-connections:UseConnection"} == set(actions)


def test_artifacts_logs_and_topic_use_keys_of_the_stack(delivered: Assembly) -> None:
    resources = delivered.resources(STACK)
    store = delivered.one(STACK, "AWS::CodePipeline::Pipeline")["Properties"]["ArtifactStore"]
    key = {"Fn::GetAtt": [next(name for name in resources if name.startswith("Key")), "Arn"]}
    assert store["EncryptionKey"] == {"Id": key, "Type": "KMS"}
    for kind, place in (("AWS::CodeBuild::Project", "EncryptionKey"), ("AWS::Logs::LogGroup", "KmsKeyId")):
        found = delivered.of_type(STACK, kind)
        assert found and all(item["Properties"][place] == key for item in found.values())
    assert "KmsMasterKeyId" in delivered.one(STACK, "AWS::SNS::Topic")["Properties"]


def test_each_notification_is_a_sentence_with_a_place_and_a_remedy(delivered: Assembly) -> None:
    rules = [one["Properties"] for one in delivered.of_type(STACK, "AWS::Events::Rule").values()]
    texts = {
        str(target["InputTransformer"]["InputTemplate"]): target["InputTransformer"]["InputPathsMap"]
        for rule in rules
        for target in rule["Targets"]
        if "InputTransformer" in target
    }
    for part, path in (
        ("waits for approval", "$.detail.stage"),
        ("failed: ", "$.detail.execution-result.external-execution-summary"),
        ("Fix the cause and merge again", "$.detail.execution-id"),
    ):
        (paths,) = [paths for text, paths in texts.items() if part in text]
        assert path in paths.values()


def test_daily_drift_detection_and_alarms(delivered: Assembly) -> None:
    clocks = [
        item["Properties"].get("ScheduleExpression") for item in delivered.of_type(STACK, "AWS::Events::Rule").values()
    ]
    assert "cron(0 4 * * ? *)" in clocks
    alarms = delivered.of_type(STACK, "AWS::CloudWatch::Alarm").values()
    (topic,) = delivered.of_type(STACK, "AWS::SNS::Topic")
    assert [item["Properties"]["AlarmActions"] for item in alarms] == [[{"Ref": topic}]] * 2
    function = delivered.one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]["TARGETS"]
    assert all(f"{name}-{stack}" in str(function) for name in ("minimal", "production") for stack in STACKS)


def grants(assembly: Assembly) -> list[tuple[str, str, str]]:
    """Return each allowed action and resource of the stack's roles, with the policy's name."""
    projects = assembly.of_type(STACK, "AWS::CodeBuild::Project")
    arns = arns_of(assembly) | {name: f"arn:aws:codebuild:us-east-1:{ACCOUNT}:project/{name}" for name in projects}
    found = []
    for name, item in assembly.of_type(STACK, "AWS::IAM::Policy").items():
        for statement in plain(item["Properties"]["PolicyDocument"]["Statement"], arns):
            actions, resources = (
                [each] if isinstance(each := statement[key], str) else each for key in ("Action", "Resource")
            )
            found += [(name, action, resource) for action in actions for resource in resources]
    return found


def test_each_role_has_the_boundary_which_allows_its_grants(delivered: Assembly) -> None:
    (boundary,) = delivered.of_type(STACK, "AWS::IAM::ManagedPolicy")
    for item in delivered.of_type(STACK, "AWS::IAM::Role").values():
        assert item["Properties"]["PermissionsBoundary"] == {"Ref": boundary}
    document = plain(delivered.resources(STACK)[boundary]["Properties"]["PolicyDocument"], {})
    above = []
    for where, action, resource in grants(delivered):
        if resource == "*":
            continue  # a grant of the library without a resource, limited by the boundary
        # Any partition and any bootstrap role, as in the grant for self-mutation; and the example's connection.
        one = resource.replace("arn:*", "arn:aws").replace("role/*", "role/cdk-x").replace("111122223333", ACCOUNT)
        if verdict([document], Access(action, one, {}), CONTEXT, None) != "allow":
            above.append((where, action, resource))
    assert above == []


def test_boundary_allows_no_administration(delivered: Assembly) -> None:
    (boundary,) = delivered.of_type(STACK, "AWS::IAM::ManagedPolicy").values()
    document = plain(boundary["Properties"]["PolicyDocument"], {})
    for action, resource in (
        ("iam:CreateRole", f"arn:aws:iam::{ACCOUNT}:role/cdk-x"),
        ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/cdk-x"),
        ("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/Administrator"),
        ("s3:PutBucketPolicy", "arn:aws:s3:::made"),
        ("kms:PutKeyPolicy", f"arn:aws:kms:us-east-1:{ACCOUNT}:key/x"),
    ):
        assert verdict([document], Access(action, resource, {}), CONTEXT, None) != "allow", action


def test_checkers_report_no_finding(delivered: Assembly) -> None:
    assert findings(delivered) == []


ISSUER = "token.actions.githubusercontent.com"
DEPLOYS = {
    "aud": "sts.amazonaws.com",
    "sub": "repo:octo-org/trainer:environment:production",
    "repository_id": "456789",
    "ref": "refs/heads/main",
    "environment": "production",
}
READS = {
    "aud": "sts.amazonaws.com",
    "sub": "repo:octo-org/trainer:environment:review",
    "repository_id": "456789",
    "ref": "refs/pull/7/merge",
    "environment": "review",
}
ANY_PULL_REQUEST = {key: value for key, value in READS.items() if key != "environment"}
ANY_PULL_REQUEST |= {"sub": "repo:octo-org/trainer:pull_request"}
NIGHTLY = ANY_PULL_REQUEST | {"sub": "repo:octo-org/trainer:ref:refs/heads/main", "ref": "refs/heads/main"}
WITH_IDS = "repo:octo-org@123456/trainer@456789:"


def trusts(assembly: Assembly, role: str, claims: dict[str, str]) -> bool:
    """Return True if IAM lets a job with these token claims assume a role."""
    name = next(each for each in assembly.resources(STACK) if each.startswith(f"Github{role}") and "Policy" not in each)
    document = assembly.resources(STACK)[name]["Properties"]["AssumeRolePolicyDocument"]
    context = {f"{ISSUER}:{claim}": [value] for claim, value in claims.items()}
    statements = [
        {key: value for key, value in plain(each, {}).items() if key != "Principal"} | {"Resource": "*"}
        for each in document["Statement"]
    ]
    access = Access("sts:AssumeRoleWithWebIdentity", "*", {})
    return verdict([{"Version": "2012-10-17", "Statement": statements}], access, context, None) == "allow"


@pytest.mark.parametrize(
    ("role", "claims", "expected"),
    [
        ("DeployRole", DEPLOYS, True),
        ("DeployRole", DEPLOYS | {"sub": WITH_IDS + "environment:production"}, True),
        (
            "DeployRole",
            DEPLOYS | {"sub": WITH_IDS + "environment:production-approval", "environment": "production-approval"},
            True,
        ),
        ("DeployRole", DEPLOYS | {"repository_id": "1"}, False),
        ("DeployRole", DEPLOYS | {"ref": "refs/heads/other"}, False),
        ("DeployRole", DEPLOYS | {"environment": "staging", "sub": "repo:octo-org/trainer:environment:staging"}, False),
        ("DeployRole", DEPLOYS | {"aud": "https://github.com/octo-org"}, False),
        ("DeployRole", DEPLOYS | {"sub": "repo:evil/trainer:environment:production"}, False),
        ("DeployRole", {key: value for key, value in DEPLOYS.items() if key != "environment"}, False),
        ("DeployRole", READS, False),
        ("DeployRole", NIGHTLY, False),
        ("ReadRole", READS, True),
        ("ReadRole", READS | {"sub": WITH_IDS + "environment:review"}, True),
        ("ReadRole", ANY_PULL_REQUEST, False),
        ("ReadRole", ANY_PULL_REQUEST | {"sub": WITH_IDS + "pull_request"}, False),
        ("ReadRole", READS | {"environment": "other", "sub": "repo:octo-org/trainer:environment:other"}, False),
        ("ReadRole", NIGHTLY, True),
        ("ReadRole", READS | {"repository_id": "1"}, False),
        ("ReadRole", NIGHTLY | {"sub": "repo:octo-org/trainer:ref:refs/heads/x", "ref": "refs/heads/x"}, False),
        ("ReadRole", READS | {"aud": "other"}, False),
    ],
)
def test_trust_of_the_github_roles(delivered: Assembly, role: str, claims: dict[str, str], expected: bool) -> None:
    assert trusts(delivered, role, claims) is expected


def test_github_roles_only_assume_bootstrap_roles(delivered: Assembly) -> None:
    def reach(role: str) -> set[str]:
        held = [(action, resource) for name, action, resource in grants(delivered) if name.startswith(f"Github{role}")]
        assert {action for action, _ in held} == {"sts:AssumeRole"}
        return {resource.rsplit("/", 1)[1] for _, resource in held}

    def bootstrap(*duties: str) -> set[str]:
        return {f"cdk-hnb659fds-{duty}-role-{ACCOUNT}-us-east-1" for duty in duties}

    assert reach("ReadRole") == bootstrap("lookup")
    assert reach("DeployRole") == bootstrap("deploy", "file-publishing", "lookup")


def test_provider_is_created_or_existing(delivered: Assembly, synthesis: Synthesis) -> None:
    provider = delivered.one(STACK, "AWS::IAM::OIDCProvider")["Properties"]
    assert provider == {"ClientIdList": ["sts.amazonaws.com"], "Url": f"https://{ISSUER}"} | {
        key: value for key, value in provider.items() if key == "Tags"
    }
    arn = f"arn:aws:iam::{ACCOUNT}:oidc-provider/{ISSUER}"
    github = {"repository": "octo-org/trainer", "repository_id": 456789, "owner_id": 123456, "provider_arn": arn}
    imported = synthesis.variant("imported-provider", {"delivery.github": github}, base="minimal")
    assert imported.of_type(STACK, "AWS::IAM::OIDCProvider") == {}
    for item in imported.of_type(STACK, "AWS::IAM::Role").values():
        statements = item["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert {each["Principal"]["Federated"] for each in statements} == {arn}
    assert trusts(imported, "DeployRole", DEPLOYS)
    assert imported.of_type(STACK, "AWS::CodePipeline::Pipeline") == {}
