"""A sequence of merges, each carried by `python -m stacks deliver`: what passes, what stops, what is put back."""

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
    """Return what nodes are made from and by: launch template versions, and the group."""
    groups = repository.place.cloud.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return repository.place.template_versions(), groups[0]["AutoScalingGroupARN"]


def run_document(repository: Repository) -> str:
    ssm = repository.place.cloud.client("ssm")
    return str(ssm.get_parameter(Name="/trainstack/minimal/run")["Parameter"]["Value"])


def status(repository: Repository, stack: str) -> str:
    described: dict[str, Any] = repository.place.cloud.client("cloudformation").describe_stacks(StackName=stack)
    return str(described["Stacks"][0]["StackStatus"])


def verdict(repository: Repository) -> str:
    """Return what the gate tells a workflow."""
    output = repository.place.project / "build" / "gate.env"
    output.unlink(missing_ok=True)
    outcome = repository.deliver("gate", "--output", str(output))
    assert outcome.exit_code == 0, outcome.output
    return output.read_text().splitlines()[0]


def test_merges_are_carried_stopped_and_put_back(repository: Repository) -> None:
    repository.merge("Train the sample")
    first = repository.deliver("deploy", "--approved", "40")
    assert first.exit_code == 0, first.output
    assert repository.deliver("deploy").output.endswith("nothing to do\n")
    assert repository.place.denied() == []

    # A hyperparameter: the run document changes, and nothing that nodes are made from.
    nodes, document = fleet(repository), run_document(repository)
    repository.merge("Learn more slowly", training__config__optimizer={"learning_rate": 0.0001})
    assert verdict(repository) == "verdict=pass"
    passed = repository.deliver("deploy")
    assert passed.exit_code == 0, passed.output
    assert fleet(repository) == nodes
    assert run_document(repository) != document and "0.0001" in run_document(repository)

    # Another instance type: it passes below the threshold, and stops at a lower one.
    repository.merge("Take larger machines too", capacity__instance_types=["g6.xlarge", "g6.2xlarge"])
    held = repository.deliver("deploy", "--approve-from", "10")
    assert held.exit_code == 3, held.output
    added = repository.deliver("deploy")
    assert added.exit_code == 0, added.output
    assert fleet(repository)[1] == nodes[1]

    # A way out of the network: the gate stops it, and nothing is touched.
    document, nodes = run_document(repository), fleet(repository)
    events = repository.place.cloud.client("cloudformation").describe_stack_events
    before = events(StackName="minimal-NetworkStack")["StackEvents"][0]["EventId"]
    repository.merge("Open the network", network__nat=True)
    assert verdict(repository) == "verdict=ask"
    stopped = repository.deliver("deploy")
    assert stopped.exit_code == 3, stopped.output
    assert "a person must agree" in stopped.output
    assert events(StackName="minimal-NetworkStack")["StackEvents"][0]["EventId"] == before
    repository.revert()

    # Agreed to by mistake, and AWS refuses it: the stack is put back, the run of before is still there.
    repository.merge("Give nodes a policy", node__extra_policies=[NO_POLICY])
    failed = repository.deliver("deploy", "--approved", "40")
    assert failed.exit_code == 1, failed.output
    assert status(repository, "minimal-TrainingStack") == "UPDATE_ROLLBACK_COMPLETE"
    assert (run_document(repository), fleet(repository)) == (document, nodes)
    repository.revert()
    again = repository.deliver("deploy")
    assert again.exit_code == 0 and again.output.endswith("nothing to do\n"), again.output


def test_drift_is_found_under_the_reading_role(repository: Repository) -> None:
    repository.merge("Train the sample")
    assert repository.deliver("drift").exit_code == 1  # nothing is deployed to compare
    assert repository.deliver("deploy", "--approved", "40").exit_code == 0
    clean = repository.deliver("drift")
    assert clean.exit_code == 0, clean.output
    stack = "minimal-ObservabilityStack"
    ids = repository.place.physical_ids(stack)
    name, (_, physical) = next(item for item in ids.items() if item[1][0] == "AWS::CloudWatch::Alarm")
    repository.place.cloud.client("cloudwatch").delete_alarms(AlarmNames=[physical])
    found = repository.deliver("drift")
    assert found.exit_code == 3, found.output
    assert f"{stack}: {name} (AWS::CloudWatch::Alarm) is gone" in found.output
    assert repository.place.denied() == []


def test_the_roles_of_githubs_workflows_are_made_under_the_execution_policy(repository: Repository) -> None:
    github = {"repository": "octo-org/trainer", "repository_id": 456789, "owner_id": 123456}
    repository.merge("Let workflows deploy", delivery__github=github)
    made = repository.place.cdk("deploy", "PipelineStack", "--require-approval", "never")
    assert made.exit_code == 0, made.output
    iam = repository.place.cloud.client("iam")
    outputs = repository.place.cloud.client("cloudformation").describe_stacks(StackName="minimal-PipelineStack")
    arns = {each["OutputKey"]: each["OutputValue"] for each in outputs["Stacks"][0]["Outputs"]}
    for name in ("DeployRole", "ReadRole"):
        role = iam.get_role(RoleName=arns[name].rpartition("/")[2])["Role"]
        ceiling = role["PermissionsBoundary"]["PermissionsBoundaryArn"]
        assert ceiling.endswith(":policy/trainstack-minimal-us-east-1-delivery-boundary")
    assert repository.place.cdk("destroy", "PipelineStack", "--force").exit_code == 0
    assert repository.place.denied() == []
