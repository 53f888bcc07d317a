"""The stack that delivers: what its pipeline does in which order, who asks whom, and whom GitHub's roles trust."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.iam.policy import Access, verdict
from stacks.policy import nag
from stacks.policy.assembly import CheckedApp
from stacks.policy.explained import explained_rules
from stacks.policy.lint import cfn_lint

from .conftest import CONFIGS, ROOT, STACKS, Assembly, Synthesis
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
def test_it_is_off_by_default(synthesis: Synthesis, name: str) -> None:
    assert not (synthesis.of(name).directory / f"{STACK}.template.json").exists()


def test_a_stage_gets_the_templates_that_a_laptop_deploys(delivered: Assembly, synthesis: Synthesis) -> None:
    folder = delivered.directory / f"assembly-Deploy-{STAGES[0]}"
    for stack in STACKS:
        (template,) = folder.glob(f"*{stack}*.template.json")
        assert template.read_text() == synthesis.of("minimal").text(stack)


def test_a_commit_is_checked_before_the_pipeline_changes_itself_and_each_stage_has_a_gate(
    pipeline: list[dict[str, Any]],
) -> None:
    names = [stage["Name"] for stage in pipeline]
    each = [name for stage in STAGES for name in (f"Gate-{stage}", f"Approve-{stage}", f"Deploy-{stage}")]
    assert names == ["Source", "Build", "UpdatePipeline", "Assets", *each]
    order = {action["Name"]: action["RunOrder"] for action in named(pipeline, "Build")["Actions"]}
    assert order == {"Check": 1, "Test": 1, "Policy": 1, "Synth": 2}


@pytest.mark.parametrize("stage", STAGES)
def test_a_person_is_asked_only_when_the_gate_of_that_stage_says_so(pipeline: list[dict[str, Any]], stage: str) -> None:
    (gate,) = named(pipeline, f"Gate-{stage}")["Actions"]
    approval = named(pipeline, f"Approve-{stage}")
    (condition,) = approval["BeforeEntry"]["Conditions"]
    (rule,) = condition["Rules"]
    assert condition["Result"] == "SKIP"
    assert rule["RuleTypeId"]["Provider"] == "VariableCheck"
    variable = f"#{{{gate['Namespace']}.VERDICT}}"
    assert rule["Configuration"] == {"Variable": variable, "Value": "ask", "Operator": "EQ"}
    assert [action["ActionTypeId"]["Category"] for action in approval["Actions"]] == ["Approval"]


def test_the_gate_exports_what_the_condition_reads(delivered: Assembly) -> None:
    builds = [item["Properties"] for item in delivered.of_type(STACK, "AWS::CodeBuild::Project").values()]
    gates = [each["Source"]["BuildSpec"] for each in builds if "deliver gate" in str(each["Source"]["BuildSpec"])]
    assert len(gates) == len(STAGES)
    for spec in gates:
        assert '"exported-variables": [\n      "VERDICT",\n      "SUMMARY"\n    ]' in spec
        assert "--approve-from 30" in spec and "export VERDICT=" in spec


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_fails_is_rolled_back(pipeline: list[dict[str, Any]], stage: str) -> None:
    assert named(pipeline, f"Deploy-{stage}")["OnFailure"] == {"Result": "ROLLBACK"}


def test_it_is_of_the_second_type_and_may_use_the_connection_by_both_names(delivered: Assembly) -> None:
    assert delivered.one(STACK, "AWS::CodePipeline::Pipeline")["Properties"]["PipelineType"] == "V2"
    actions = [action for _, action, resource in grants(delivered) if ":connection/" in resource]
    assert {"codeconnections:UseConnection", "codestar-connections:UseConnection"} == set(actions)


def test_artifacts_logs_and_notices_are_encrypted_with_keys_of_the_stack(delivered: Assembly) -> None:
    resources = delivered.resources(STACK)
    store = delivered.one(STACK, "AWS::CodePipeline::Pipeline")["Properties"]["ArtifactStore"]
    key = {"Fn::GetAtt": [next(name for name in resources if name.startswith("Key")), "Arn"]}
    assert store["EncryptionKey"] == {"Id": key, "Type": "KMS"}
    for kind, place in (("AWS::CodeBuild::Project", "EncryptionKey"), ("AWS::Logs::LogGroup", "KmsKeyId")):
        found = delivered.of_type(STACK, kind)
        assert found and all(item["Properties"][place] == key for item in found.values())
    assert "KmsMasterKeyId" in delivered.one(STACK, "AWS::SNS::Topic")["Properties"]


def test_drift_is_looked_for_daily_and_both_alarms_tell_the_topic(delivered: Assembly) -> None:
    clocks = [
        item["Properties"].get("ScheduleExpression") for item in delivered.of_type(STACK, "AWS::Events::Rule").values()
    ]
    assert "cron(0 4 * * ? *)" in clocks
    alarms = delivered.of_type(STACK, "AWS::CloudWatch::Alarm").values()
    (topic,) = delivered.of_type(STACK, "AWS::SNS::Topic")
    assert [item["Properties"]["AlarmActions"] for item in alarms] == [[{"Ref": topic}]] * 2
    function = delivered.one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]["PLACES"]
    assert all(f"{name}-{stack}" in str(function) for name in ("minimal", "production") for stack in STACKS)


def grants(assembly: Assembly) -> list[tuple[str, str, str]]:
    """Return each action on each resource that a role of the stack is allowed, with the policy's name."""
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


def test_every_role_is_bounded_and_no_grant_is_above_the_ceiling(delivered: Assembly) -> None:
    (ceiling,) = delivered.of_type(STACK, "AWS::IAM::ManagedPolicy")
    for item in delivered.of_type(STACK, "AWS::IAM::Role").values():
        assert item["Properties"]["PermissionsBoundary"] == {"Ref": ceiling}
    document = plain(delivered.resources(STACK)[ceiling]["Properties"]["PolicyDocument"], {})
    above = []
    for where, action, resource in grants(delivered):
        if resource == "*":
            continue  # a grant of the library's own that names nothing: what counts of it is below the ceiling
        # Any partition and any role of a bootstrap, as the self-mutation's grant has it; the example's connection.
        one = resource.replace("arn:*", "arn:aws").replace("role/*", "role/cdk-x").replace("111122223333", ACCOUNT)
        if verdict([document], Access(action, one, {}), CONTEXT, None) != "allow":
            above.append((where, action, resource))
    assert above == []


def test_the_ceiling_holds_no_administration(delivered: Assembly) -> None:
    (ceiling,) = delivered.of_type(STACK, "AWS::IAM::ManagedPolicy").values()
    document = plain(ceiling["Properties"]["PolicyDocument"], {})
    for action, resource in (
        ("iam:CreateRole", f"arn:aws:iam::{ACCOUNT}:role/cdk-x"),
        ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/cdk-x"),
        ("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/Administrator"),
        ("s3:PutBucketPolicy", "arn:aws:s3:::made"),
        ("kms:PutKeyPolicy", f"arn:aws:kms:us-east-1:{ACCOUNT}:key/x"),
    ):
        assert verdict([document], Access(action, resource, {}), CONTEXT, None) != "allow", action


def test_the_checkers_find_nothing(delivered: Assembly) -> None:
    assert delivered.app is not None
    checked = CheckedApp("delivered", delivered.app, delivered.directory)
    explained = explained_rules(ROOT / "docs" / "security.md")
    verdicts = [*cfn_lint(checked, "us-east-1"), *nag.solutions(checked, 1), *nag.nist(checked, 1, explained)]
    assert [str(finding) for each in verdicts for finding in each.findings] == []


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
    "sub": "repo:octo-org/trainer:pull_request",
    "repository_id": "456789",
    "ref": "refs/pull/7/merge",
}
NIGHTLY = READS | {"sub": "repo:octo-org/trainer:ref:refs/heads/main", "ref": "refs/heads/main"}
WITH_IDS = "repo:octo-org@123456/trainer@456789:"


def trusts(assembly: Assembly, role: str, claims: dict[str, str]) -> bool:
    """Tell whether IAM lets a job with these claims in its token take a role."""
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
        ("ReadRole", READS | {"sub": WITH_IDS + "pull_request"}, True),
        ("ReadRole", NIGHTLY, True),
        ("ReadRole", READS | {"repository_id": "1"}, False),
        ("ReadRole", NIGHTLY | {"sub": "repo:octo-org/trainer:ref:refs/heads/x", "ref": "refs/heads/x"}, False),
        ("ReadRole", READS | {"aud": "other"}, False),
    ],
)
def test_whom_githubs_roles_trust(delivered: Assembly, role: str, claims: dict[str, str], expected: bool) -> None:
    assert trusts(delivered, role, claims) is expected


def test_githubs_roles_do_nothing_but_take_on_roles_of_the_bootstrap(delivered: Assembly) -> None:
    def reach(role: str) -> set[str]:
        held = [(action, resource) for name, action, resource in grants(delivered) if name.startswith(f"Github{role}")]
        assert {action for action, _ in held} == {"sts:AssumeRole"}
        return {resource.rsplit("/", 1)[1] for _, resource in held}

    def bootstrap(*duties: str) -> set[str]:
        return {f"cdk-hnb659fds-{duty}-role-{ACCOUNT}-us-east-1" for duty in duties}

    assert reach("ReadRole") == bootstrap("lookup")
    assert reach("DeployRole") == bootstrap("deploy", "file-publishing", "lookup")


def test_the_provider_is_a_plain_resource_or_one_that_is_there(delivered: Assembly, synthesis: Synthesis) -> None:
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
