"""TrainingStack: what nodes are told, what they may do, and what an edit changes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bootstrap.documents import TERMINATING_HOOK, NodeDocument, RunDocument

from .conftest import CONFIGS, Assembly, Synthesis

STACK = "TrainingStack"


def flat(value: Any) -> str:
    """Return a string property with its references as words."""
    if isinstance(value, str):
        return value
    if "Fn::Base64" in value:
        return flat(value["Fn::Base64"])
    if "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator).join(flat(part) for part in parts)
    name = next(iter(value.values()))
    if re.search(r"OutputRef\w*Volume", str(name)):
        return "vol-0123456789abcdef0"  # what it has to look like, the node document's own rules hold
    return "reference-" + re.sub(r"[^a-z0-9]+", "-", str(name).lower())


def launch(assembly: Assembly) -> dict[str, Any]:
    data: dict[str, Any] = assembly.one(STACK, "AWS::EC2::LaunchTemplate")["Properties"]["LaunchTemplateData"]
    return data


def group(assembly: Assembly) -> dict[str, Any]:
    return assembly.one(STACK, "AWS::AutoScaling::AutoScalingGroup")


def node_role(assembly: Assembly) -> str:
    (name,) = (name for name in assembly.of_type(STACK, "AWS::IAM::Role") if name.startswith("NodeRole"))
    return name


def controller_role(assembly: Assembly) -> str:
    (name,) = (name for name in assembly.of_type(STACK, "AWS::IAM::Role") if name.startswith("RunController"))
    return name


class TestTemplate:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_user_data_is_the_shim_and_a_sound_document(self, synthesis: Synthesis, name: str) -> None:
        text = flat(launch(synthesis.of(name))["UserData"])
        script, document = text.split("exit # node document\n")
        assert script.startswith("#!/bin/bash\n")
        assert "@" not in script
        assert len(text.encode()) < 16 * 1024
        node = NodeDocument.from_text(document)
        assert node.bundle.sha256 in script
        assert node.deployment == name or node.deployment in text

    def test_script_is_under_a_kilobyte(self, demo: Assembly) -> None:
        script = flat(launch(demo)["UserData"]).split("exit # node document\n")[0]
        assert len(script.encode()) < 1024

    def test_metadata_service_wants_tokens_and_is_out_of_reach_for_containers(self, demo: Assembly) -> None:
        assert launch(demo)["MetadataOptions"] == {
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
            "HttpTokens": "required",
            "InstanceMetadataTags": "enabled",
        }

    def test_root_volume_is_encrypted_and_goes_with_the_node(self, demo: Assembly) -> None:
        (mapping,) = launch(demo)["BlockDeviceMappings"]
        assert mapping["Ebs"]["Encrypted"] is True
        assert mapping["Ebs"]["VolumeType"] == "gp3"
        assert mapping["Ebs"]["DeleteOnTermination"] is True

    def test_a_node_that_shuts_down_is_gone(self, demo: Assembly) -> None:
        assert launch(demo)["InstanceInitiatedShutdownBehavior"] == "terminate"

    def test_there_is_no_key_pair_and_no_spot_option(self, demo: Assembly) -> None:
        """Nobody logs in by SSH; and a mixed instances policy forbids spot options in the template."""
        assert not {"KeyName", "InstanceMarketOptions"} & set(launch(demo))


class TestFleet:
    @pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"ec2-fleet", "spot-fleet"}))  # see test_fleets.py
    def test_the_template_never_sizes_it(self, synthesis: Synthesis, name: str) -> None:
        properties = group(synthesis.of(name))["Properties"]
        assert properties["MinSize"] == "0"
        assert "DesiredCapacity" not in properties
        policy = group(synthesis.of(name))["UpdatePolicy"]
        assert policy["AutoScalingScheduledAction"] == {"IgnoreUnmodifiedGroupSizeProperties": True}

    def test_a_node_edit_replaces_all_nodes_at_once(self, demo: Assembly) -> None:
        refresh = group(demo)["UpdatePolicy"]["AutoScalingInstanceRefresh"]
        assert refresh["Preferences"]["MinHealthyPercentage"] == 0
        specification = group(demo)["Properties"]["MixedInstancesPolicy"]["LaunchTemplate"]
        version = specification["LaunchTemplateSpecification"]["Version"]
        assert version["Fn::GetAtt"][1] == "LatestVersionNumber"

    def test_leaving_nodes_have_time_to_save(self, demo: Assembly) -> None:
        (hook,) = group(demo)["Properties"]["LifecycleHookSpecificationList"]
        assert hook["LifecycleHookName"] == TERMINATING_HOOK
        assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
        assert hook["DefaultResult"] == "CONTINUE"

    def test_a_cluster_lives_in_one_subnet(self, demo: Assembly, synthesis: Synthesis) -> None:
        assert len(group(demo)["Properties"]["VPCZoneIdentifier"]) == 1
        assert launch(demo)["Placement"] == {"GroupName": {"Ref": "Placement"}}
        assert demo.one(STACK, "AWS::EC2::PlacementGroup")["Properties"]["Strategy"] == "cluster"
        spread = synthesis.variant("spread", {"capacity.placement": "none"})
        assert len(group(spread)["Properties"]["VPCZoneIdentifier"]) == 2
        assert "Placement" not in launch(spread)

    def test_all_types_are_offered_on_spot(self, demo: Assembly) -> None:
        mixed = group(demo)["Properties"]["MixedInstancesPolicy"]
        assert len(mixed["LaunchTemplate"]["Overrides"]) > 1
        assert mixed["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 0

    def test_on_demand_is_on_demand(self, synthesis: Synthesis) -> None:
        bought = synthesis.variant("on-demand", {"capacity.market": "on_demand"})
        distribution = group(bought)["Properties"]["MixedInstancesPolicy"]["InstancesDistribution"]
        assert distribution["OnDemandPercentageAboveBaseCapacity"] == 100
        assert "SpotAllocationStrategy" not in distribution

    def test_no_forced_replacement_by_rebalancing(self, demo: Assembly) -> None:
        assert group(demo)["Properties"]["CapacityRebalance"] is False


class TestRights:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_no_action_is_a_star_and_no_statement_nameless(self, synthesis: Synthesis, name: str) -> None:
        assembly = synthesis.of(name)
        for role in (node_role(assembly), controller_role(assembly)):
            statements = assembly.statements(STACK, role)
            assert statements
            for sid, statement in statements.items():
                actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
                assert not any(action.endswith("*") for action in actions), sid

    def test_star_resources_are_those_without_a_resource_level(self, demo: Assembly) -> None:
        wide = {
            sid
            for role in (node_role(demo), controller_role(demo))
            for sid, statement in demo.statements(STACK, role).items()
            if statement["Resource"] == "*"
        }
        assert wide == {"SessionManager", "SeeFleet"}

    def test_a_node_deletes_checkpoints_only(self, demo: Assembly) -> None:
        deleting = [item for item in demo.statements(STACK, node_role(demo)).values() if "Delete" in str(item)]
        (statement,) = deleting
        assert flat(statement["Resource"]).endswith("/runs/*")

    def test_lists_have_no_prefix_condition(self, demo: Assembly) -> None:
        """With one, S3 answers 403 instead of 404 for an object that is not there."""
        for role in (node_role(demo), controller_role(demo)):
            for statement in demo.statements(STACK, role).values():
                if statement["Action"] == "s3:ListBucket":
                    assert "Condition" not in statement

    def test_nobody_but_ec2_becomes_a_node(self, demo: Assembly) -> None:
        (statement,) = demo.resources(STACK)[node_role(demo)]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Principal"] == {"Service": "ec2.amazonaws.com"}
        assert "ManagedPolicyArns" not in demo.resources(STACK)[node_role(demo)]["Properties"]


class TestRunController:
    def test_one_at_a_time(self, demo: Assembly) -> None:
        assert demo.one(STACK, "AWS::Lambda::Function")["Properties"]["ReservedConcurrentExecutions"] == 1

    def test_its_environment_is_what_the_handler_reads(self, demo: Assembly) -> None:
        from stacks.functions.run_controller.handler import Surroundings

        variables = demo.one(STACK, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]
        at = Surroundings.from_environment({name: flat(value) for name, value in variables.items()})
        assert at.fleet.backend == "auto_scaling_group"
        assert at.fleet.fleet_id == group(demo)["Properties"]["AutoScalingGroupName"]
        assert len(at.settings.subnets) == 2
        assert at.settings.one_subnet_at_a_time

    def test_what_wakes_it(self, demo: Assembly) -> None:
        rules = [item["Properties"] for item in demo.of_type(STACK, "AWS::Events::Rule").values()]
        sources = sorted(rule["EventPattern"]["source"][0] for rule in rules if "EventPattern" in rule)
        assert sources == ["aws.autoscaling", "aws.ec2", "aws.s3", "aws.ssm"]
        assert [rule["ScheduleExpression"] for rule in rules if "ScheduleExpression" in rule] == ["rate(1 minute)"]

    def test_the_run_document_comes_last(self, demo: Assembly) -> None:
        """It starts the run: fleet, rules and rights must be there to see it appear."""
        needed = set(demo.one(STACK, "AWS::SSM::Parameter")["DependsOn"])
        kinds = {demo.resources(STACK)[name]["Type"] for name in needed}
        assert {"AWS::AutoScaling::AutoScalingGroup", "AWS::Events::Rule", "AWS::Lambda::Function"} <= kinds


class TestDocuments:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_run_document_is_sound(self, synthesis: Synthesis, name: str) -> None:
        properties = synthesis.of(name).one(STACK, "AWS::SSM::Parameter")["Properties"]
        run = RunDocument.from_text(flat(properties["Value"]))
        assert properties["Name"] == f"/trainstack/{run.deployment}/run"
        assert properties["Tier"] == "Standard"

    def test_data_to_prepare_are_said_to_nodes_which_may_write_there_only_then(
        self, synthesis: Synthesis, demo: Assembly
    ) -> None:
        prepare = {"function": "training.data.preparation:tokenize", "source": "raw/text", "options": {"size": 512}}
        variant = synthesis.variant("prepare", {"training.prepare": prepare})
        value = flat(variant.one(STACK, "AWS::SSM::Parameter")["Properties"]["Value"])
        told = RunDocument.from_text(value).prepare
        assert told is not None
        assert (told.source, told.options, told.timeout_minutes) == ("raw/text", {"size": 512}, 1440)
        before, after = demo.statements(STACK, node_role(demo)), variant.statements(STACK, node_role(variant))
        added = {sid: after[sid] for sid in after if sid not in before}
        assert {sid: flat(added[sid]["Resource"]).split("/", 1)[1] for sid in added} == {
            "ReadSource": "raw/text/*",
            "KeepPreparedData": "datasets/prepared/*",
        }
        assert added["KeepPreparedData"]["Action"] == ["s3:PutObject", "s3:AbortMultipartUpload"]

    def changed(self, synthesis: Synthesis, demo: Assembly, label: str, path: str, value: object) -> set[str]:
        """Return the types of the resources that an edit changes."""
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
    def test_an_edit_of_what_is_trained_changes_the_run_document_alone(
        self, synthesis: Synthesis, demo: Assembly, label: str, path: str, value: object
    ) -> None:
        assert self.changed(synthesis, demo, label, path, value) == {"AWS::SSM::Parameter"}

    def test_an_edit_of_the_node_changes_the_launch_template_alone(self, synthesis: Synthesis, demo: Assembly) -> None:
        changed = self.changed(synthesis, demo, "poll", "node.supervise.poll_seconds", 5.0)
        assert changed == {"AWS::EC2::LaunchTemplate"}

    def test_a_long_document_gets_a_larger_parameter_and_a_longer_one_words(self, synthesis: Synthesis) -> None:
        from stacks.training_stack import parameter_tier

        assert parameter_tier("x" * 3000, "d") == "Standard"
        assert parameter_tier("x" * 4000, "d") == "Advanced"
        with pytest.raises(ValueError, match="must fit into an SSM parameter of 8192 bytes"):
            parameter_tier("x" * 8000, "d")


def test_outputs_say_where_things_are(demo: Assembly) -> None:
    storage = {name for name in json.loads(demo.text("StorageStack"))["Outputs"] if not name.startswith("Exports")}
    assert storage == {"CheckpointBucket", "DatasetBucket"}
    training = set(json.loads(demo.text(STACK))["Outputs"])
    assert training == {"FleetId", "LogGroup", "RunParameter"}
