"""A sequence of merges deployed with `python -m stacks deliver`: passed, stopped and rolled back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.conftest import CDK

from .conftest import Repository

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not CDK.exists(), reason="node_modules is absent: npm ci"),
]
NO_POLICY = "arn:aws:iam::aws:policy/NoSuchPolicy"


def fleet(repository: Repository) -> tuple[dict[str, int], str]:
    """Return the launch template versions and the ARN of the group."""
    groups = repository.workplace.cloud.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return repository.workplace.template_versions(), groups[0]["AutoScalingGroupARN"]


def run_document(repository: Repository) -> str:
    ssm = repository.workplace.cloud.client("ssm")
    return str(ssm.get_parameter(Name="/trainstack/minimal/run")["Parameter"]["Value"])


def status(repository: Repository, stack: str) -> str:
    described: dict[str, Any] = repository.workplace.cloud.client("cloudformation").describe_stacks(StackName=stack)
    return str(described["Stacks"][0]["StackStatus"])


def verdict(repository: Repository) -> str:
    """Return the verdict of the gate."""
    output = repository.workplace.project / "build" / "gate.env"
    output.unlink(missing_ok=True)
    outcome = repository.deliver("gate", "--output", str(output))
    assert outcome.exit_code == 0, outcome.output
    return output.read_text().splitlines()[0]


def test_merges_are_deployed_stopped_or_rolled_back(repository: Repository) -> None:
    repository.merge("Train the sample")
    first = repository.deliver("deploy", "--approved", "40")
    assert first.exit_code == 0, first.output
    assert repository.deliver("deploy").output.endswith("nothing to deploy\n")
    assert repository.workplace.denied() == []

    # A hyperparameter: only the run document changes, not the launch template.
    nodes, document = fleet(repository), run_document(repository)
    repository.merge("Learn more slowly", training__config__optimizer={"learning_rate": 0.0001})
    assert verdict(repository) == "verdict=pass"
    passed = repository.deliver("deploy")
    assert passed.exit_code == 0, passed.output
    assert fleet(repository) == nodes
    assert run_document(repository) != document and "0.0001" in run_document(repository)

    # Another instance type: passes the default threshold, and stops at a lower one.
    repository.merge("Allow larger instances", capacity__instance_types=["g6.xlarge", "g6.2xlarge"])
    held = repository.deliver("deploy", "--approve-from", "10")
    assert held.exit_code == 3, held.output
    added = repository.deliver("deploy")
    assert added.exit_code == 0, added.output
    assert fleet(repository)[1] == nodes[1]

    # A NAT gateway: the gate stops it, and the stack stays unchanged.
    document, nodes = run_document(repository), fleet(repository)
    events = repository.workplace.cloud.client("cloudformation").describe_stack_events
    before = events(StackName="minimal-NetworkStack")["StackEvents"][0]["EventId"]
    repository.merge("Open the network", network__nat=True)
    assert verdict(repository) == "verdict=ask"
    stopped = repository.deliver("deploy")
    assert stopped.exit_code == 3, stopped.output
    assert "codes 30 and above need approval" in stopped.output
    assert events(StackName="minimal-NetworkStack")["StackEvents"][0]["EventId"] == before
    repository.revert()

    # Approved by mistake, and AWS rejects it: the stack is rolled back, and the run stays unchanged.
    repository.merge("Give nodes a policy", node__extra_policies=[NO_POLICY])
    failed = repository.deliver("deploy", "--approved", "40")
    assert failed.exit_code == 1, failed.output
    assert status(repository, "minimal-TrainingStack") == "UPDATE_ROLLBACK_COMPLETE"
    assert (run_document(repository), fleet(repository)) == (document, nodes)
    repository.revert()
    again = repository.deliver("deploy")
    assert again.exit_code == 0 and again.output.endswith("nothing to deploy\n"), again.output


def test_drift_detection_works_with_the_lookup_role(repository: Repository) -> None:
    repository.merge("Train the sample")
    assert repository.deliver("drift").exit_code == 1  # no stack is deployed yet
    assert repository.deliver("deploy", "--approved", "40").exit_code == 0
    clean = repository.deliver("drift")
    assert clean.exit_code == 0, clean.output
    stack = "minimal-ObservabilityStack"
    ids = repository.workplace.physical_ids(stack)
    name, (_, physical) = next(item for item in ids.items() if item[1][0] == "AWS::CloudWatch::Alarm")
    repository.workplace.cloud.client("cloudwatch").delete_alarms(AlarmNames=[physical])
    found = repository.deliver("drift")
    assert found.exit_code == 3, found.output
    assert f"{stack}: {name} (AWS::CloudWatch::Alarm) was deleted" in found.output
    assert repository.workplace.denied() == []


def test_execution_policy_allows_the_roles_of_github_workflows(repository: Repository) -> None:
    github = {"repository": "octo-org/trainer", "repository_id": 456789, "owner_id": 123456}
    repository.merge("Let workflows deploy", delivery__github=github)
    made = repository.workplace.cdk("deploy", "PipelineStack", "--require-approval", "never")
    assert made.exit_code == 0, made.output
    iam = repository.workplace.cloud.client("iam")
    outputs = repository.workplace.cloud.client("cloudformation").describe_stacks(StackName="minimal-PipelineStack")
    arns = {each["OutputKey"]: each["OutputValue"] for each in outputs["Stacks"][0]["Outputs"]}
    for name in ("DeployRole", "ReadRole"):
        role = iam.get_role(RoleName=arns[name].rpartition("/")[2])["Role"]
        boundary = role["PermissionsBoundary"]["PermissionsBoundaryArn"]
        assert boundary.endswith(":policy/trainstack-minimal-us-east-1-delivery-boundary")
    assert repository.workplace.cdk("destroy", "PipelineStack", "--force").exit_code == 0
    assert repository.workplace.denied() == []
