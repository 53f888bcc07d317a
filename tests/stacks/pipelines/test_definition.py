"""The state machine, its members and its permissions, from deployment files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser

from localcloud.functions.states.definition import decode
from localcloud.functions.states.model import Attempt
from stacks.artifacts.pipeline_items import step_items, write_items
from stacks.config import DeploymentConfig
from stacks.config.pipeline import RandomConfig, StepConfig
from stacks.config.pipeline.conditions import Condition, ConditionError, parse_condition
from stacks.config.pipeline.members import step_members
from stacks.config.pipeline.steps import ordered, slots_by_step
from stacks.constructs.workflow.definition import Items, definition
from stacks.loading import load
from tests.localcloud.states.dry_engine import DryEngine
from tests.stacks.conftest import ROOT, Assembly, Synthesis
from training.config import TrainingConfig

FILE = ROOT / "config" / "pipelines" / "sweep.yaml"
CODE = "c" * 64


@pytest.fixture(scope="module")
def config() -> DeploymentConfig:
    return load(FILE)


@pytest.fixture(scope="module")
def machine(config: DeploymentConfig) -> dict[str, Any]:
    assert config.pipeline is not None
    items = {name: Items("assets", f"{name}.json", 1) for name in config.pipeline.steps}
    fleets = {name: [f"pipeline-{end}" for end in ends] for name, ends in slots_by_step(config).items()}
    return definition(ordered(config.pipeline), items, fleets, "arn:aws:lambda:us-east-1:123456789012:function:f")


def test_two_parsers_accept_the_definition(machine: dict[str, Any]) -> None:
    text = json.dumps(machine)
    assert decode(text) == machine
    AmazonStateLanguageParser.parse(text)


def test_the_steps_run_in_order_and_a_false_condition_ends_the_pipeline(machine: dict[str, Any]) -> None:
    for bits, expected in ((1.1, ["prepare", "train", "evaluate", "export"]), (1.3, ["prepare", "train", "evaluate"])):
        dry = DryEngine(machine, items=[{"index": 0}])
        execution = dry.start()
        seen: list[str] = []

        def answer(
            attempt: Attempt, parameters: Any, dry: DryEngine = dry, seen: list[str] = seen, bits: float = bits
        ) -> None:
            payload = parameters["Payload"]
            if payload["action"] == "start":
                assert (payload["token"], payload["execution"]) == (attempt.token, "one")
                seen.append(payload["step"])
                dry.engine.succeed(attempt.token, {})
            else:
                result = {"step": payload["step"], "metrics": {"bits_per_byte": bits}}
                dry.engine.returned(attempt, {"Payload": result})

        dry.answer_all(answer)
        assert execution.status == "SUCCEEDED"
        assert seen == expected


def test_each_step_receives_the_result_of_the_previous_one(machine: dict[str, Any]) -> None:
    dry = DryEngine(machine, items=[{"index": 0}])
    dry.start()
    inputs: list[Any] = []

    def answer(attempt: Attempt, parameters: Any) -> None:
        payload = parameters["Payload"]
        if payload["action"] == "start":
            inputs.append(payload["input"])
            dry.engine.succeed(attempt.token, {})
        else:
            dry.engine.returned(attempt, {"Payload": {"from": payload["step"], "metrics": {"bits_per_byte": 1.0}}})

    dry.answer_all(answer)
    assert [each.get("from") for each in inputs] == [None, "prepare", "train", "evaluate"]


def test_a_busy_slot_is_retried_without_reaching_the_history_limit(machine: dict[str, Any]) -> None:
    member = machine["States"]["train"]["ItemProcessor"]["States"]["run"]
    (busy,) = [each for each in member["Retry"] if each["ErrorEquals"] == ["SlotsBusy"]]
    assert busy["MaxAttempts"] * 5 < 25_000, "an attempt adds at most five events"


def test_members_are_all_combinations_and_their_digests_depend_on_code_and_settings(config: DeploymentConfig) -> None:
    assert config.pipeline is not None
    train = ordered(config.pipeline)[1]
    items = step_items(config, train, CODE)
    assert [each["settings"] for each in items] == [
        {"optimizer.learning_rate": rate, "optimizer.weight_decay": decay}
        for rate in (6.0e-4, 3.0e-4)
        for decay in (0.1, 0.01)
    ]
    assert items[1]["document"]["training"]["optimizer"]["weight_decay"] == 0.01
    assert not {"code", "deployment", "run"} & set(items[0]["document"])
    digests = {each["digest"] for each in items} | {each["digest"] for each in step_items(config, train, "d" * 64)}
    assert len(digests) == 8
    assert step_items(config, train, CODE) == items


def test_a_function_runs_in_one_process_on_one_node_of_its_capacity(config: DeploymentConfig) -> None:
    assert config.pipeline is not None
    evaluate = ordered(config.pipeline)[2]
    (item,) = step_items(config, evaluate, CODE)
    document = item["document"]
    assert (document["nodes"], document["processes_per_node"]) == (1, 1)
    assert document["training"]["entrypoint"] == "training/integrations/pipeline_step.py"
    assert (ROOT / document["training"]["entrypoint"]).is_file()
    assert document["training"]["arguments"][:2] == ["--function", "training.inference.steps:evaluate"]
    assert slots_by_step(config) == {
        "prepare": ["", "2"], "train": ["", "2"], "evaluate": ["evaluate-1"], "export": ["", "2"],
    }  # fmt: skip


def test_random_members_are_reproducible_and_inside_their_ranges() -> None:
    section = {
        "members": 50,
        "seed": 3,
        "values": {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}},
    }
    step = StepConfig(random=RandomConfig.model_validate(section))
    found = [each.settings["optimizer.learning_rate"] for each in step_members(TrainingConfig(), step)]
    assert found == [each.settings["optimizer.learning_rate"] for each in step_members(TrainingConfig(), step)]
    assert len(set(found)) == 50
    assert all(1e-5 <= each <= 1e-2 for each in found)
    below = sum(each < 10**-3.5 for each in found)
    assert 15 <= below <= 35, "half of them are in each half of the logarithmic range"


def test_members_are_validated_for_the_processes_of_the_steps_own_capacity(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        """
name: own
capacity: {instance_types: [g6.xlarge, g6.2xlarge], nodes: 4}
training: {dataset: d, config: {micro_batch_size: 1, global_batch_size: 4}}
pipeline:
  steps:
    a: {sweep: {global_batch_size: [1]}, capacity: {instance_types: [g6.xlarge, g6.2xlarge], nodes: 1}}
"""
    )
    config = load(file)
    assert config.pipeline is not None
    (item,) = step_items(config, ordered(config.pipeline)[0], CODE)
    assert (item["document"]["nodes"], item["document"]["processes_per_node"]) == (1, 1)


def test_files_of_members_are_named_after_their_content(tmp_path: Path) -> None:
    first, again = write_items([{"a": 1}], tmp_path), write_items([{"a": 1}], tmp_path)
    assert first == again
    assert json.loads(first.read_text()) == [{"a": 1}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bits_per_byte < 1.2", Condition("bits_per_byte", "<", 1.2)),
        ("loss>=2", Condition("loss", ">=", 2.0)),
        (" a <= -1e-3 ", Condition("a", "<=", -1e-3)),
    ],
)
def test_conditions(text: str, expected: Condition) -> None:
    assert parse_condition(text) == expected


@pytest.mark.parametrize("text", ["", "loss", "loss == 1", "1 < loss", "loss < x", "loss < 1 < 2", "loss < 1.2.3"])
def test_invalid_conditions(text: str) -> None:
    with pytest.raises(ConditionError):
        parse_condition(text)


@pytest.fixture(scope="module")
def assembly(synthesis: Synthesis) -> Assembly:
    return synthesis.run(FILE, "pipeline-sweep")


def test_no_template_starts_a_run(assembly: Assembly) -> None:
    for stack in ("TrainingStack", "TrainingStack-2", "TrainingStack-evaluate-1"):
        assert not assembly.of_type(stack, "AWS::SSM::Parameter")


def test_nodes_can_neither_read_nor_write_the_objects_of_the_pipeline(assembly: Assembly) -> None:
    for stack in ("TrainingStack", "TrainingStack-2", "TrainingStack-evaluate-1"):
        for policy in assembly.of_type(stack, "AWS::IAM::Policy").values():
            for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
                assert "/pipelines/" not in json.dumps(statement["Resource"])
    readers = json.dumps(assembly.resources("TrainingStack-2"))
    assert "/runs/pipeline-*/*/checkpoints/*" in readers, "a step reads the weights of earlier steps"


def test_the_function_may_only_write_the_parameters_and_objects_of_its_slots(assembly: Assembly) -> None:
    roles = [name for name in assembly.of_type("WorkflowStack", "AWS::IAM::Role") if not name.startswith("Machine")]
    statements = assembly.statements("WorkflowStack", roles[0])
    fleets = ("pipeline", "pipeline-2", "pipeline-evaluate-1")
    for sid, name in (("StartRuns", "run"), ("StopRuns", "desired")):
        resources = json.dumps(statements[sid]["Resource"])
        assert resources.count("parameter/trainstack/") == len(fleets)
        assert all(f"parameter/trainstack/{fleet}/{name}" in resources for fleet in fleets)
    writes = [sid for sid, each in statements.items() if "s3:PutObject" in each["Action"]]
    assert writes == ["KeepMembers"]
    assert json.dumps(statements["KeepMembers"]["Resource"]).count("/pipelines/*") == 1


def test_the_alarm_for_a_failed_execution_notifies_the_deployments_topic(assembly: Assembly) -> None:
    alarms = assembly.of_type("ObservabilityStack", "AWS::CloudWatch::Alarm").values()
    (alarm,) = [each["Properties"] for each in alarms if each["Properties"].get("Namespace") == "AWS/States"]
    (machine,) = assembly.of_type("WorkflowStack", "AWS::StepFunctions::StateMachine").values()
    (dimension,) = alarm["Dimensions"]
    assert (alarm["MetricName"], dimension["Name"]) == ("ExecutionsFailed", "StateMachineArn")
    name = machine["Properties"]["StateMachineName"]
    assert json.dumps(dimension["Value"]).endswith(f':stateMachine:{name}"]]}}')
    (topic,) = assembly.of_type("ObservabilityStack", "AWS::SNS::Topic")
    assert alarm["AlarmActions"] == [{"Ref": topic}]
    assert not assembly.of_type("WorkflowStack", "AWS::CloudWatch::Alarm")
