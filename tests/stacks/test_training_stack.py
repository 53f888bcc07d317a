"""TrainingStack: documents, launch template, permissions, run controller, and the effects of edits."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from typing import Any

import pytest

from bootstrap.documents import TERMINATING_HOOK, NodeDocument, RunDocument
from stacks.artifacts.documents import ADVANCED_PARAMETER_BYTES
from stacks.constructs.nodes.object_rights import WRITE_ONCE
from stacks.loading import read
from training.config import TrainingConfig

from .conftest import CONFIGS, ROOT, Assembly, Synthesis

STACK = "TrainingStack"
NULLS = ("optimizer.max_grad_norm", "execution.garbage_collection_interval_steps", "checkpoint.interval_minutes")
"""Settings for which null has a meaning and is not the default."""


def flat(value: Any) -> str:
    """Return a string property with references replaced by names."""
    if isinstance(value, str):
        return value
    if "Fn::Base64" in value:
        return flat(value["Fn::Base64"])
    if "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator).join(flat(part) for part in parts)
    name = next(iter(value.values()))
    if re.search(r"OutputRef\w*Volume", str(name)):
        return "vol-0123456789abcdef0"  # a valid id, because the node document checks it
    return "reference-" + re.sub(r"[^a-z0-9]+", "-", str(name).lower())


def launch(assembly: Assembly) -> dict[str, Any]:
    data: dict[str, Any] = assembly.one(STACK, "AWS::EC2::LaunchTemplate")["Properties"]["LaunchTemplateData"]
    return data


def group(assembly: Assembly) -> dict[str, Any]:
    """Return the fleet's first group. With one zone at a time, there is one for each zone."""
    return next(iter(assembly.of_type(STACK, "AWS::AutoScaling::AutoScalingGroup").values()))


def node_role(assembly: Assembly) -> str:
    (name,) = (name for name in assembly.of_type(STACK, "AWS::IAM::Role") if name.startswith("NodeRole"))
    return name


def controller_role(assembly: Assembly) -> str:
    (name,) = (name for name in assembly.of_type(STACK, "AWS::IAM::Role") if name.startswith("RunController"))
    return name


class TestTemplate:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_user_data_is_the_shim_and_a_valid_document(self, synthesis: Synthesis, name: str) -> None:
        text = flat(launch(synthesis.of(name))["UserData"])
        script, document = text.split("exit # node document\n")
        assert script.startswith("#!/bin/bash\n")
        assert "@" not in script
        assert len(text.encode()) < 16 * 1024
        node = NodeDocument.from_text(document)
        assert node.bundle.sha256 in script
        assert node.deployment == name or node.deployment in text

    def test_script_is_smaller_than_a_kilobyte(self, demo: Assembly) -> None:
        script = flat(launch(demo)["UserData"]).split("exit # node document\n")[0]
        assert len(script.encode()) < 1024

    def test_metadata_service_requires_tokens_and_one_hop(self, demo: Assembly) -> None:
        assert launch(demo)["MetadataOptions"] == {
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
            "HttpTokens": "required",
            "InstanceMetadataTags": "enabled",
        }

    def test_root_volume_is_encrypted_and_deleted_with_the_node(self, demo: Assembly) -> None:
        (mapping,) = launch(demo)["BlockDeviceMappings"]
        assert mapping["Ebs"]["Encrypted"] is True
        assert mapping["Ebs"]["VolumeType"] == "gp3"
        assert mapping["Ebs"]["DeleteOnTermination"] is True

    def test_shutdown_terminates_the_node(self, demo: Assembly) -> None:
        assert launch(demo)["InstanceInitiatedShutdownBehavior"] == "terminate"

    def test_template_has_no_key_pair_and_no_market_options(self, demo: Assembly) -> None:
        """SSH is not used, and a mixed instances policy forbids spot options in the template."""
        assert not {"KeyName", "InstanceMarketOptions"} & set(launch(demo))


class TestFleet:
    @pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"ec2-fleet", "spot-fleet"}))  # see test_fleets.py
    def test_template_never_sets_the_size(self, synthesis: Synthesis, name: str) -> None:
        properties = group(synthesis.of(name))["Properties"]
        assert properties["MinSize"] == "0"
        assert "DesiredCapacity" not in properties
        policy = group(synthesis.of(name))["UpdatePolicy"]
        assert policy["AutoScalingScheduledAction"] == {"IgnoreUnmodifiedGroupSizeProperties": True}

    def test_node_edit_replaces_all_nodes_at_once(self, demo: Assembly) -> None:
        refresh = group(demo)["UpdatePolicy"]["AutoScalingInstanceRefresh"]
        assert refresh["Preferences"]["MinHealthyPercentage"] == 0
        specification = group(demo)["Properties"]["MixedInstancesPolicy"]["LaunchTemplate"]
        version = specification["LaunchTemplateSpecification"]["Version"]
        assert version["Fn::GetAtt"][1] == "LatestVersionNumber"

    def test_terminating_hook_leaves_time_to_save(self, demo: Assembly) -> None:
        (hook,) = group(demo)["Properties"]["LifecycleHookSpecificationList"]
        assert hook["LifecycleHookName"] == TERMINATING_HOOK
        assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
        assert hook["DefaultResult"] == "CONTINUE"

    def test_cluster_placement_uses_one_subnet(self, demo: Assembly, synthesis: Synthesis) -> None:
        assert len(group(demo)["Properties"]["VPCZoneIdentifier"]) == 1
        assert launch(demo)["Placement"] == {"GroupName": {"Ref": "Placement"}}
        assert demo.one(STACK, "AWS::EC2::PlacementGroup")["Properties"]["Strategy"] == "cluster"
        spread = synthesis.variant("spread", {"capacity.placement": "none"})
        assert len(group(spread)["Properties"]["VPCZoneIdentifier"]) == 2
        assert "Placement" not in launch(spread)

    def test_each_zone_has_a_group_that_a_deploy_cannot_move(self, demo: Assembly) -> None:
        """CloudFormation writes a group's unmodified properties back; only sizes have an opt-out.

        Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-updatepolicy.html
        """
        groups = demo.of_type(STACK, "AWS::AutoScaling::AutoScalingGroup")
        assert list(groups) == ["FleetA", "FleetB"]
        names = [one["Properties"]["AutoScalingGroupName"] for one in groups.values()]
        assert names == ["trainstack-demo.a", "trainstack-demo.b"]
        subnets = [str(one["Properties"]["VPCZoneIdentifier"]) for one in groups.values()]
        assert ["IsolatedA" in subnets[0], "IsolatedB" in subnets[1]] == [True, True]
        variables = demo.one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]
        assert variables["FLEET_ID"] == ",".join(names)
        sizing = demo.statements(STACK, controller_role(demo))["SizeFleet"]
        assert "autoscaling:UpdateAutoScalingGroup" not in sizing["Action"]
        assert [flat(one).rpartition("/")[2] for one in sizing["Resource"]] == ["trainstack-demo", "trainstack-demo.*"]

    def test_spot_group_lists_all_types(self, demo: Assembly) -> None:
        mixed = group(demo)["Properties"]["MixedInstancesPolicy"]
        assert len(mixed["LaunchTemplate"]["Overrides"]) > 1
        assert mixed["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 0

    def test_on_demand_market(self, synthesis: Synthesis) -> None:
        bought = synthesis.variant("on-demand", {"capacity.market": "on_demand"})
        distribution = group(bought)["Properties"]["MixedInstancesPolicy"]["InstancesDistribution"]
        assert distribution["OnDemandPercentageAboveBaseCapacity"] == 100
        assert "SpotAllocationStrategy" not in distribution

    def test_rebalancing_is_off_by_default(self, demo: Assembly) -> None:
        assert group(demo)["Properties"]["CapacityRebalance"] is False


class TestRights:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_no_wildcard_action_and_each_statement_has_a_sid(self, synthesis: Synthesis, name: str) -> None:
        assembly = synthesis.of(name)
        for role in (node_role(assembly), controller_role(assembly)):
            statements = assembly.statements(STACK, role)
            assert statements
            for sid, statement in statements.items():
                actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
                assert not any(action.endswith("*") for action in actions), sid

    def test_star_resources_only_for_calls_without_resource_level(self, demo: Assembly) -> None:
        wide = {
            sid
            for role in (node_role(demo), controller_role(demo))
            for sid, statement in demo.statements(STACK, role).items()
            if statement["Resource"] == "*"
        }
        assert wide == {"SessionManager", "DescribeFleet", "PriceInstances"}

    def test_node_may_delete_checkpoints_only(self, demo: Assembly) -> None:
        """Nodes may not delete log entries: a node that could delete an entry could then write another one."""
        deleting = [item for item in demo.statements(STACK, node_role(demo)).values() if "Delete" in str(item)]
        (statement,) = deleting
        kinds = sorted(flat(one).rpartition("/runs/demo/*/checkpoints/")[2] for one in statement["Resource"])
        assert kinds == ["chunks/*", "dropped/*", "parts/*", "tags/*"]

    def test_log_and_elections_are_written_once(self, demo: Assembly) -> None:
        statements = demo.statements(STACK, node_role(demo))
        once = {sid for sid, item in statements.items() if item.get("Condition") == WRITE_ONCE}
        assert once == {"AppendLog", "RecordGenerations"}

    def test_list_permissions_have_no_prefix_condition(self, demo: Assembly) -> None:
        """With such a condition, S3 returns 403 instead of 404 for a missing object."""
        for role in (node_role(demo), controller_role(demo)):
            for statement in demo.statements(STACK, role).values():
                if statement["Action"] == "s3:ListBucket":
                    assert "Condition" not in statement

    def test_only_ec2_may_assume_the_node_role(self, demo: Assembly) -> None:
        (statement,) = demo.resources(STACK)[node_role(demo)]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Principal"] == {"Service": "ec2.amazonaws.com"}
        assert "ManagedPolicyArns" not in demo.resources(STACK)[node_role(demo)]["Properties"]


class TestRunController:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_no_function_reserves_concurrency(self, synthesis: Synthesis, name: str) -> None:
        """Reserving fails in an account with a limit of 10: https://github.com/DataDog/datadog-serverless-functions/issues/621"""
        assembly = synthesis.of(name)
        for stack in sorted(path.name.split(".")[0] for path in assembly.directory.glob("*.template.json")):
            for function in assembly.of_type(stack, "AWS::Lambda::Function").values():
                assert "ReservedConcurrentExecutions" not in function["Properties"]

    def test_events_pass_through_a_fifo_queue_with_one_message_group(self, demo: Assembly) -> None:
        """Lambda runs one invocation per message group: docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html.

        EventBridge requires content-based deduplication (the model of events.SqsParameters in botocore).
        """
        (queue_name,) = demo.of_type(STACK, "AWS::SQS::Queue")
        arn = {"Fn::GetAtt": [queue_name, "Arn"]}
        queue = demo.one(STACK, "AWS::SQS::Queue")["Properties"]
        function = demo.one(STACK, "AWS::Lambda::Function")["Properties"]
        mapping = demo.one(STACK, "AWS::Lambda::EventSourceMapping")["Properties"]
        assert (queue["FifoQueue"], queue["ContentBasedDeduplication"]) == (True, True)
        assert queue["VisibilityTimeout"] >= function["Timeout"]
        assert mapping["EventSourceArn"] == arn
        rules = demo.of_type(STACK, "AWS::Events::Rule")
        targets = [target for rule in rules.values() for target in rule["Properties"]["Targets"]]
        assert {flat(target["Arn"]) for target in targets} == {flat(arn)}
        assert {target["SqsParameters"]["MessageGroupId"] for target in targets} == {"run-controller"}
        assert demo.of_type(STACK, "AWS::Lambda::Permission") == {}
        statements = demo.one(STACK, "AWS::SQS::QueuePolicy")["Properties"]["PolicyDocument"]["Statement"]
        admitted = statements[0]["Condition"]["ArnEquals"]["aws:SourceArn"]
        assert sorted(one["Fn::GetAtt"][0] for one in admitted) == sorted(rules)

    def test_nodes_cannot_write_the_state(self, demo: Assembly) -> None:
        written = [
            flat(resource)
            for statement in demo.statements(STACK, node_role(demo)).values()
            if "s3:PutObject" in statement["Action"]
            for resource in (
                statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            )
        ]
        assert written
        assert not any("/controller/" in one or one.endswith("/*") and one.count("/") == 1 for one in written)

    def test_dataset_is_expected_in_the_bucket_unless_a_volume_may_contain_it(self, synthesis: Synthesis) -> None:
        expected = {
            name: bool(
                synthesis.of(name).one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"][
                    "DATASET_BUCKET"
                ]
            )
            for name in ("demo", "minimal", "volumes", "lustre")
        }
        assert expected == {"demo": True, "minimal": True, "volumes": False, "lustre": False}

    def test_environment_matches_the_handler(self, demo: Assembly) -> None:
        from stacks.functions.run_controller.environment import Environment

        variables = demo.one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]
        at = Environment.of({name: flat(value) for name, value in variables.items()})
        assert at.fleet.backend == "auto_scaling_group"
        assert at.fleet.fleet_id.split(",")[0] == group(demo)["Properties"]["AutoScalingGroupName"]
        assert len(at.settings.subnets) == 2
        assert at.settings.one_subnet_at_a_time

    def test_event_rules(self, demo: Assembly) -> None:
        rules = [item["Properties"] for item in demo.of_type(STACK, "AWS::Events::Rule").values()]
        sources = sorted(rule["EventPattern"]["source"][0] for rule in rules if "EventPattern" in rule)
        assert sources == ["aws.autoscaling", "aws.ec2", "aws.ec2", "aws.s3", "aws.s3", "aws.ssm", "trainstack"]
        assert [rule["ScheduleExpression"] for rule in rules if "ScheduleExpression" in rule] == ["rate(1 minute)"]

    def test_run_document_is_created_last(self, demo: Assembly) -> None:
        """The run document starts the run, so the fleet, rules and permissions must already exist."""
        needed = set(demo.one(STACK, "AWS::SSM::Parameter")["DependsOn"])
        kinds = {demo.resources(STACK)[name]["Type"] for name in needed}
        assert {"AWS::AutoScaling::AutoScalingGroup", "AWS::Events::Rule", "AWS::Lambda::Function"} <= kinds
        assert {"AWS::Lambda::EventSourceMapping", "AWS::SQS::QueuePolicy"} <= kinds


class TestDocuments:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_run_document_is_valid(self, synthesis: Synthesis, name: str) -> None:
        properties = synthesis.of(name).one(STACK, "AWS::SSM::Parameter")["Properties"]
        run = RunDocument.from_text(flat(properties["Value"]))
        assert properties["Name"] == f"/trainstack/{run.deployment}/run"
        assert len(flat(properties["Value"])) < ADVANCED_PARAMETER_BYTES
        configured = read(ROOT / "config" / f"{name}.yaml").training.config
        assert TrainingConfig.model_validate(run.training) == configured

    def test_null_overrides_a_default_that_is_not_null(self, synthesis: Synthesis, demo: Assembly) -> None:
        nulls = {f"training.config.{key}": None for key in NULLS}
        options = {"training.config.model.options": {"ratio": None}, "training.config.model.function": "m:f"}
        variant = synthesis.variant("nulls", {**nulls, **options, "training.config.model.preset": None})
        run = RunDocument.from_text(flat(variant.one(STACK, "AWS::SSM::Parameter")["Properties"]["Value"]))
        found = TrainingConfig.model_validate(run.training)
        for key in NULLS:
            assert attrgetter(key)(found) is None, key
            assert attrgetter(key)(TrainingConfig()) is not None, key
        assert found.model.options == {"ratio": None}
        # A key that is null by default is absent, so that a new key of this kind does not restart every trainer.
        assert "initial_weights" not in run.training

    def test_prepare_section_adds_the_write_permission(self, synthesis: Synthesis, demo: Assembly) -> None:
        prepare = {"function": "training.data.prepare:tokenize", "source": "raw/text", "options": {"size": 512}}
        variant = synthesis.variant("prepare", {"training.prepare": prepare})
        value = flat(variant.one(STACK, "AWS::SSM::Parameter")["Properties"]["Value"])
        told = RunDocument.from_text(value).prepare
        assert told is not None
        assert (told.source, told.options, told.timeout_minutes) == ("raw/text", {"size": 512}, 1440)
        before, after = demo.statements(STACK, node_role(demo)), variant.statements(STACK, node_role(variant))
        added = {sid: after[sid] for sid in after if sid not in before}
        assert {sid: flat(added[sid]["Resource"]).split("/", 1)[1] for sid in added} == {
            "ReadSource": "raw/text/*",
            "CreatePreparedData": "datasets/prepared/*",
            "UploadPreparedParts": "datasets/prepared/*",
            "AbortPreparedUploads": "datasets/prepared/*",
            "ReportPreparation": "datasets/prepared/*/progress/${aws:userid}/*",
        }
        assert added["CreatePreparedData"]["Condition"] == WRITE_ONCE

    def changed(self, synthesis: Synthesis, demo: Assembly, label: str, path: str, value: object) -> set[str]:
        """Return the resource types that an edit changes."""
        edited = synthesis.variant(label, {path: value})
        before, after = demo.resources(STACK), edited.resources(STACK)
        assert set(before) == set(after)
        assert json.loads(demo.text("NetworkStack")) == json.loads(edited.text("NetworkStack"))
        assert json.loads(demo.text("StorageStack")) == json.loads(edited.text("StorageStack"))
        return {before[name]["Type"] for name in before if before[name] != after[name]}

    @pytest.mark.parametrize(
        ("label", "path", "value"),
        [
            ("rate", "training.config.optimizer.learning_rate", 0.0001),
            ("steps", "training.config.steps", 12345),
            ("run", "training.run", "another"),
            ("dataset", "training.dataset", "another"),
            ("min-nodes", "capacity.min_nodes", 1),
        ],
    )
    def test_training_edit_changes_the_run_document_only(
        self, synthesis: Synthesis, demo: Assembly, label: str, path: str, value: object
    ) -> None:
        assert self.changed(synthesis, demo, label, path, value) == {"AWS::SSM::Parameter"}

    def test_node_edit_changes_the_launch_template_only(self, synthesis: Synthesis, demo: Assembly) -> None:
        changed = self.changed(synthesis, demo, "poll", "node.supervise.poll_seconds", 5.0)
        assert changed == {"AWS::EC2::LaunchTemplate"}

    def test_parameter_tier_lets_the_document_grow_and_shrink(self, demo: Assembly) -> None:
        """Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html

        An advanced parameter cannot be reverted to a standard one; Intelligent-Tiering never needs that.
        """
        assert demo.one(STACK, "AWS::SSM::Parameter")["Properties"]["Tier"] == "Intelligent-Tiering"

    def test_document_that_no_parameter_can_contain_is_rejected(self) -> None:
        from stacks.artifacts.documents import check_parameter_size

        check_parameter_size("x" * 7000, "d")
        with pytest.raises(ValueError, match="must produce a run document of at most 8192 bytes"):
            check_parameter_size("x" * 8000, "d")


def test_outputs(demo: Assembly) -> None:
    storage = {name for name in json.loads(demo.text("StorageStack"))["Outputs"] if not name.startswith("Exports")}
    assert storage == {"CheckpointBucket", "ControlBucket", "DatasetBucket"}
    training = set(json.loads(demo.text(STACK))["Outputs"])
    assert training == {"FleetId", "LogGroup", "ReviewDigest", "RunParameter"}
