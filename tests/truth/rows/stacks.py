"""CloudFormation: templates, parameters, change sets, stacks and drift.

The sources are LocalStack's snapshot tests, whose responses were recorded on AWS, and AWS's documentation.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tests.truth.row import Account, Row

RECORDED = "https://github.com/localstack/localstack/blob/8b9a79f/tests/aws/services/cloudformation/"
LIMITS = "https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html"
VALIDATIONS = f"{RECORDED}api/test_validations.snapshot.json"
CHANGE_SETS = f"{RECORDED}api/test_changesets.snapshot.json#"
TEMPLATES = f"{RECORDED}api/test_templates.snapshot.json#"
STACKS = f"{RECORDED}api/test_stacks.snapshot.json#"
RESOURCES = f"{RECORDED}api/test_resources.snapshot.json#"
ENGINE = f"{RECORDED}engine/"
PARAMETERS = "https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/parameters-section-structure.html"
OUTPUTS = "https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/outputs-section-structure.html"
POLICIES = "https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html"
SIZES = "https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html"
DRIFT = "https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-drift.html"

Template = Mapping[str, Any] | str


def parameter(value: Any = "1", **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": value}, **more}


def template(resources: Any = None, **sections: Any) -> dict[str, Any]:
    return {"Resources": {"A": parameter()} if resources is None else resources, **sections}


def body(found: Template) -> str:
    return found if isinstance(found, str) else json.dumps(found)


class Stack:
    """A stack that does not exist yet, with shortcuts for the rows' calls."""

    def __init__(self, account: Account) -> None:
        self.cfn = account.client("cloudformation")
        self.name = f"truth-{uuid.uuid4().hex}"

    def call(self, operation: str, **parameters: Any) -> Any:
        return getattr(self.cfn, operation)(StackName=self.name, **parameters)

    def change_set(self, found: Template, name: str = "c", kind: str = "CREATE", **more: Any) -> Any:
        return self.call("create_change_set", ChangeSetName=name, ChangeSetType=kind, TemplateBody=body(found), **more)

    def described(self, found: Template, kind: str = "CREATE", values: bool = False, **more: Any) -> Any:
        self.change_set(found, "described", kind, **more)
        return self.call("describe_change_set", ChangeSetName="described", IncludePropertyValues=values)

    def execute(self, name: str = "c", wait: str = "stack_create_complete") -> Any:
        answer = self.call("execute_change_set", ChangeSetName=name)
        self.cfn.get_waiter(wait).wait(StackName=self.name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})
        return answer

    def create(self, found: Template | None = None, **more: Any) -> Stack:
        self.change_set(found or template(), **more)
        self.execute()
        return self

    def delete(self) -> Any:
        self.call("delete_stack")
        waiter = self.cfn.get_waiter("stack_delete_complete")
        waiter.wait(StackName=self.name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})

    def shown(self) -> Any:
        return self.call("describe_stacks")["Stacks"][0]

    def events(self) -> Any:
        return self.call("describe_stack_events")["StackEvents"]


def creating(found: Template, **more: Any) -> Callable[[Account], Any]:
    return lambda account: Stack(account).change_set(found, **more)


def validated(found: Template) -> Callable[[Account], Any]:
    return lambda account: account.client("cloudformation").validate_template(TemplateBody=body(found))


def failed(found: Template) -> Callable[[Account], Any]:
    """Return a function that creates a stack and returns the reasons for its failures."""

    def send(account: Account) -> Any:
        stack = Stack(account)
        stack.call("create_stack", TemplateBody=body(found), OnFailure="DO_NOTHING")
        waiter = stack.cfn.get_waiter("stack_exists")
        waiter.wait(StackName=stack.name)
        while stack.shown()["StackStatus"] == "CREATE_IN_PROGRESS":
            pass
        return [
            each.get("ResourceStatusReason") for each in stack.events() if each["ResourceStatus"] == "CREATE_FAILED"
        ]

    return send


def given(definition: dict[str, Any], value: str | None = None) -> Callable[[Account], Any]:
    """Return a function that sends a template with one parameter, P."""
    found = template({"A": parameter({"Ref": "P"})}, Parameters={"P": definition})
    values = [] if value is None else [{"ParameterKey": "P", "ParameterValue": value}]
    return creating(found, Parameters=values)


def sets(stack: Stack, *names: str) -> Stack:
    for name in names:
        stack.change_set(template(), name)
    return stack


def reused(account: Account) -> Any:
    stack = Stack(account).create()
    return stack.change_set(template({"A": parameter("2")}), "c", "UPDATE")


def obsolete(account: Account) -> Any:
    stack = Stack(account)
    other = stack.change_set(template(), "other")["Id"]
    stack.create()
    return stack.cfn.describe_change_set(ChangeSetName=other)["ExecutionStatus"]


def executed(account: Account) -> Any:
    stack = Stack(account)
    arn = stack.change_set(template())["Id"]
    stack.execute()
    return stack.cfn.describe_change_set(ChangeSetName=arn)["ExecutionStatus"]


def updated(before: Any, after: Any, values: bool = False, **more: Any) -> Callable[[Account], Any]:
    """Return a function that returns an update's changes, keyed by logical ID."""

    def send(account: Account) -> Any:
        changes = Stack(account).create(before).described(after, "UPDATE", values, **more)["Changes"]
        return {each["ResourceChange"]["LogicalResourceId"]: each["ResourceChange"] for each in changes}

    return send


def details(name: str, *expected: tuple[str, str]) -> Callable[[Any], bool]:
    """Return a function that checks a resource's details, given as (ChangeSource, Evaluation)."""
    return lambda found: (
        sorted((each["ChangeSource"], each["Evaluation"]) for each in found[name]["Details"]) == sorted(expected)
    )


def topic(**properties: Any) -> dict[str, Any]:
    return {"Type": "AWS::SNS::Topic", "Properties": properties}


def drifted(account: Account) -> Any:
    stack = Stack(account).create(template({"T": topic(DisplayName="d")}))
    stack.call("detect_stack_drift")
    detail = stack.call("describe_stack_resource", LogicalResourceId="T")["StackResourceDetail"]
    return detail["DriftInformation"]["StackResourceDriftStatus"]


def deleted_early(account: Account) -> Any:
    stack = Stack(account)
    many = {f"R{number}": parameter(DependsOn=f"R{number - 1}" if number else []) for number in range(60)}
    stack.call("create_stack", TemplateBody=body(template(many)))
    arn = stack.shown()["StackId"]
    assert stack.shown()["StackStatus"] == "CREATE_IN_PROGRESS"
    stack.call("delete_stack")
    waiter = stack.cfn.get_waiter("stack_delete_complete")
    waiter.wait(StackName=arn, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})
    return stack.cfn.describe_stacks(StackName=arn)["Stacks"][0]["StackStatus"]


INVALID = {"code": "ValidationError", "status": 400}
NULLS = "'null' values are not allowed in templates"
ATTRIBUTE = "every Fn::GetAtt object requires two non-empty parameters, the resource name and the resource attribute"
SELECT = "Template error: Fn::Select requires a list argument with two elements: an integer index and a list"
TWO = template({"A": parameter(), "B": parameter({"Ref": "A"}), "C": parameter({"Fn::GetAtt": ["A", "Value"]})})


def invalid(name: str, found: Template, source: str, words: str, gap: str = "") -> Row:
    return Row(name, creating(found), source, words=words, gap=gap, **INVALID)


ROWS = [
    invalid("template that is a string", "a text", STACKS + "test_create_stack_url_as_template",
            "Template format error: unsupported structure."),
    invalid("template with invalid JSON", '{"Resources": ',
            TEMPLATES + "test_validate_invalid_json_template_should_fail",
            "Template format error: JSON not well-formed. (line 1, column"),
    invalid("template with invalid YAML", "Resources:\n  A:\n    Properties:\n        B: 1\n      C: 2\n",
            TEMPLATES + "test_create_stack_invalid_yaml_template_should_fail",
            "Template format error: YAML not well-formed."),
    invalid("template without resources", {"Outputs": {}}, f"{VALIDATIONS}#test_missing_resources_block",
            "Template format error: At least one Resources member must be defined."),
    invalid("template with empty resources", template({}), f"{VALIDATIONS}#test_missing_resources_block",
            "Template format error: At least one Resources member must be defined."),
    invalid("resources that are a list", template([1]), STACKS + "test_linting_error_during_creation",
            "Template format error: Any Resources member must be an object."),
    invalid("resource that is a string", template({"A": "x"}), STACKS + "test_linting_error_during_creation",
            "Template format error: Any Resources member must be an object."),
    invalid("resource without a type", template({"A": {"Properties": {}}}),
            f"{VALIDATIONS}#test_resources_blocks[missing-type]",
            "Template format error: [/Resources/A] Every Resources object must contain a Type member."),
    invalid("resource with an unknown key", template({"A": parameter(Invalid=1)}),
            f"{VALIDATIONS}#test_resources_blocks[invalid-key]", "Invalid template resource property 'Invalid'"),
    invalid("resource name with hyphens", template({"my-bad-resource-id": parameter()}),
            RESOURCES + "test_invalid_logical_resource_id",
            "Template format error: Resource name my-bad-resource-id is non alphanumeric."),
    invalid("resource name with colons", template({"AWS::NoValue": parameter()}),
            CHANGE_SETS + "test_using_pseudoparameters_in_places[resource]",
            "Template format error: Resource name AWS::NoValue is non alphanumeric."),
    invalid("parameter name with colons", template(Parameters={"AWS::NoValue": {"Type": "String"}}),
            CHANGE_SETS + "test_using_pseudoparameters_in_places[parameter]",
            "Template format error: Parameter name AWS::NoValue is non alphanumeric."),
    invalid("output name with a hyphen", template(Outputs={"a-b": {"Value": "1"}}), OUTPUTS, "is non alphanumeric."),
    invalid("null in an output", template(Outputs={"MyOutput": {"Value": None}}),
            f"{VALIDATIONS}#test_invalid_output_structure[none-value]", f"[/Outputs/MyOutput/Value] {NULLS}"),
    invalid("null in a property", template({"A": parameter(None)}), VALIDATIONS,
            f"[/Resources/A/Properties/Value] {NULLS}"),
    invalid("null in a list", template({"A": parameter({"Fn::Join": ["", ["a", None]]})}), VALIDATIONS, NULLS),
    invalid("output without a value", template(Outputs={"MyOutput": {}}),
            f"{VALIDATIONS}#test_invalid_output_structure[multiple-nones]",
            "Template format error: Every Outputs member must contain a Value object"),
    invalid("output that is a list", template(Outputs={"O": {"Value": ["a", "b"]}}), OUTPUTS,
            "Template format error: The Value field of every Outputs member must evaluate to a String."),
    invalid("output that is the result of Fn::Split", template(Outputs={"O": {"Value": {"Fn::Split": [",", "a,b"]}}}),
            OUTPUTS, "must evaluate to a String."),
    invalid("export name that is a list", template(Outputs={"O": {"Value": "a", "Export": {"Name": ["x"]}}}), OUTPUTS,
            "evaluate to a String."),
    Row("output that is a number", creating(template(Outputs={"O": {"Value": 1}})), OUTPUTS),
    Row("output that is a list item",
        creating(template(Outputs={"O": {"Value": {"Fn::Select": [0, {"Fn::Split": [",", "a,b"]}]}}})), OUTPUTS),
    invalid("mapping with a mapping as value", template(Mappings={"M": {"A": {"B": {"C": "d"}}}}),
            ENGINE + "test_mappings.snapshot.json#test_mapping_maximum_nesting_depth",
            "Template format error: Every Mappings attribute must be a String or a List."),
    invalid("mapping with a reference", template(Mappings={"M": {"A": {"B": {"Ref": "AWS::Region"}}}}),
            ENGINE + "test_mappings.snapshot.json#test_mapping_with_invalid_refs",
            "Template format error: Every Mappings attribute must be a String or a List."),
    invalid("mapping with one level", template(Mappings={"M": {"A": "b"}}),
            ENGINE + "test_mappings.snapshot.json#test_mapping_minimum_nesting_depth",
            "Template format error: Every Mappings member A must be a map"),
    Row("mapping with a list", creating(template(Mappings={"M": {"A": {"B": ["c"]}}})),
        ENGINE + "test_mappings.snapshot.json"),
    invalid("reference to a missing resource", template({"A": parameter({"Ref": "InvalidRef"})}),
            ENGINE + "test_references.snapshot.json#test_useful_error_when_invalid_ref",
            "Template format error: Unresolved resource dependencies [InvalidRef] in the Resources block of the "
            "template"),
    invalid("DependsOn with a missing resource", template({"A": parameter(DependsOn="NonExistingResource")}),
            ENGINE + "test_references.snapshot.json#TestDependsOn::test_depends_on_with_missing_reference",
            "Unresolved resource dependencies [NonExistingResource] in the Resources block of the template"),
    invalid("Fn::Sub with a missing resource", template({"A": parameter({"Fn::Sub": "${Nothing}"})}),
            ENGINE + "test_references.snapshot.json", "Unresolved resource dependencies [Nothing]"),
    invalid("output of a missing resource", template(Outputs={"O": {"Value": {"Ref": "Nothing"}}}),
            ENGINE + "test_conditions.snapshot.json#test_output_reference_to_skipped_resource",
            "Unresolved resource dependencies [Nothing] in the Outputs block of the template"),
    invalid("reference to a resource whose condition is false",
            template({"A": parameter(Condition="No"), "B": parameter({"Ref": "A"})},
                     Conditions={"No": {"Fn::Equals": ["a", "b"]}}),
            ENGINE + "test_conditions.snapshot.json#test_dependent_ref",
            "Template format error: Unresolved resource dependencies [A] in the Resources block of the template"),
    invalid("output of a resource whose condition is false",
            template({"A": parameter(Condition="No"), "B": parameter()}, Outputs={"O": {"Value": {"Ref": "A"}}},
                     Conditions={"No": {"Fn::Equals": ["a", "b"]}}),
            ENGINE + "test_conditions.snapshot.json#test_output_reference_to_skipped_resource",
            "Unresolved resource dependencies [A] in the Outputs block of the template"),
    invalid("Fn::If with an unknown condition", template({"A": parameter({"Fn::If": ["Missing", "a", "b"]})}),
            f"{RECORDED}test_change_set_conditions.snapshot.json#test_missing_condition",
            "Template error: unresolved condition dependency Missing in Fn::If"),
    invalid("Fn::GetAtt of a function", template({"A": parameter({"Fn::GetAtt": [{"Ref": "A"}]})}),
            f"{RECORDED}test_change_set_fn_get_attr.snapshot.json#test_invalid_structure[getatt_validation.yml]",
            f"Template error: {ATTRIBUTE}"),
    invalid("Fn::GetAtt without an attribute", template({"A": parameter(), "B": parameter({"Fn::GetAtt": ["A"]})}),
            f"{RECORDED}test_change_set_fn_get_attr.snapshot.json#test_invalid_structure[getatt_validation2.yml]",
            f"Template error: {ATTRIBUTE}"),
    Row("Fn::GetAtt of an attribute in a parameter", creating(
        template(Parameters={"P": {"Type": "String", "Default": "Value"}},
                 Outputs={"O": {"Value": {"Fn::GetAtt": ["A", {"Ref": "P"}]}}})),
        f"{RECORDED}api/test_reference_resolving.snapshot.json#test_nested_getatt_ref"),
    Row("Fn::GetAtt of a property", lambda a: Stack(a).create(
        template(Outputs={"O": {"Value": {"Fn::GetAtt": ["A", "Value"]}}})).shown()["Outputs"][0]["OutputValue"],
        f"{RECORDED}test_change_set_fn_get_attr.snapshot.json", holds=lambda found: found == "1"),
    *(invalid(f"Fn::Select of {name}", template({"A": parameter({"Fn::Select": argument})}),
              f"{RECORDED}test_change_set_fn_select.snapshot.json#test_invalid_select_index_type", SELECT)
      for name, argument in {"a text": ["bad", ["test"]], "a number": [0, 2], "the 101st": [100, ["test"]]}.items()),
    invalid("template of 51,201 bytes", body(template(Metadata={"x": ""})).replace('""', f'"{"x" * 51_200}"'), LIMITS,
            "Member must have length less than or equal to 51200"),
    Row("template of 51,000 bytes", creating(template(Metadata={"x": "x" * 50_800})), LIMITS),
    invalid("501 resources", template({f"R{number}": {"Type": "AWS::SQS::Queue"} for number in range(501)}), LIMITS,
            "Template format error: Number of resources, 501, is greater than maximum allowed, 500"),
    Row("500 resources", creating(template({f"R{number}": {"Type": "AWS::SQS::Queue"} for number in range(500)})),
        LIMITS),
    Row("Standard parameter of 4,097 characters", failed(template({"A": parameter("x" * 4_097)})), SIZES,
        holds=lambda found: bool(found)),
    Row("Standard parameter of 4,096 characters", failed(template({"A": parameter("x" * 4_096)})), SIZES,
        holds=lambda found: not found),
    Row("missing required property", failed(template({"A": {"Type": "AWS::SSM::Parameter",
        "Properties": {"Value": "1"}}})),
        f"{RECORDED}test_template_engine.snapshot.json#TestStackEvents::test_invalid_stack_deploy",
        holds=lambda found: "Property validation failure: [The property {/Type} is required]" in found),
    Row("DeletionPolicy with Fn::If", creating(
        template({"A": parameter(DeletionPolicy={"Fn::If": ["Yes", "Retain", "Delete"]})},
                 Conditions={"Yes": {"Fn::Equals": ["a", "a"]}})),
        f"{ENGINE}test_deletion_policy.snapshot.json"),
    Row("UpdateReplacePolicy with Fn::If", creating(
        template({"A": parameter(UpdateReplacePolicy={"Fn::If": ["Yes", "Retain", "Delete"]})},
                 Conditions={"Yes": {"Fn::Equals": ["a", "a"]}})),
        f"{ENGINE}test_update_policy.snapshot.json"),
    invalid("unknown DeletionPolicy", template({"A": parameter(DeletionPolicy="Keep")}), POLICIES, "DeletionPolicy"),
    Row("Boolean AllowedValues", given({"Type": "String", "AllowedValues": [True, False]}, "true"),
        PARAMETERS),
    Row("Boolean default", given({"Type": "String", "AllowedValues": [True, False], "Default": False}),
        PARAMETERS),
    Row("value missing from AllowedValues", given({"Type": "String", "AllowedValues": ["a"]}, "b"), PARAMETERS,
        words="Parameter 'P' must be one of AllowedValues", **INVALID),
    Row("number parameter with a text value", given({"Type": "Number"}, "not-a-number"),
        f"{RECORDED}test_change_set_parameters.snapshot.json#test_invalid_parameter_type",
        words="Parameter 'P' must be a number.", **INVALID),
    Row("parameter without a value", given({"Type": "String"}), PARAMETERS,
        words="Parameters: [P] must have values", **INVALID),
    Row("value of an unknown parameter",
        creating(template(), Parameters=[{"ParameterKey": "X", "ParameterValue": "1"}]), PARAMETERS,
        words="Parameters: [X] do not exist in the template", **INVALID),
    Row("value that violates the pattern", given({"Type": "String", "AllowedPattern": "[a-z]+"}, "1"), PARAMETERS,
        words="must match pattern [a-z]+", **INVALID),
    Row("value that is too long", given({"Type": "String", "MaxLength": 1}, "ab"), PARAMETERS,
        words="must contain at most 1 characters", **INVALID),
    Row("stack that does not exist", lambda a: Stack(a).shown(), STACKS + "test_name_conflicts",
        words="Stack with id truth-", **INVALID),
    Row("events of a stack that does not exist", lambda a: Stack(a).events(),
        STACKS + "test_describe_stack_events_errors",
        words="Stack [truth-", **INVALID),
    Row("resource of a stack that does not exist",
        lambda a: Stack(a).call("describe_stack_resource", LogicalResourceId="A"),
        RESOURCES + "test_describe_non_existent_stack", words="Stack 'truth-", **INVALID),
    Row("resource that does not exist",
        lambda a: Stack(a).create().call("describe_stack_resource", LogicalResourceId="not-a-valid-resource"),
        RESOURCES + "test_describe_non_existent_resource",
        words="Resource not-a-valid-resource does not exist for stack truth-", **INVALID),
    Row("change set of a stack that does not exist",
        lambda a: Stack(a).call("describe_change_set", ChangeSetName="DoesNotExist"),
        CHANGE_SETS + "test_describe_change_set_nonexisting", words="Stack [truth-", **INVALID),
    Row("deletion of a change set of a stack that does not exist",
        lambda a: Stack(a).call("delete_change_set", ChangeSetName="DoesNotExist"),
        CHANGE_SETS + "test_delete_change_set_exception", words="Stack [truth-", **INVALID),
    Row("change set by name without a stack",
        lambda a: a.client("cloudformation").delete_change_set(ChangeSetName="DoesNotExist"),
        CHANGE_SETS + "test_delete_change_set_exception",
        words="StackName must be specified if ChangeSetName is not specified as an ARN.", **INVALID),
    Row("update of a stack that does not exist", creating(template(), kind="UPDATE"),
        CHANGE_SETS + "test_delete_change_set_exception", words="Stack [truth-", **INVALID),
    Row("creation of a stack that exists", lambda a: Stack(a).create().change_set(template(), "d"),
        CHANGE_SETS + "test_name_conflicts", words="already exists and cannot be created again with the changeSet [d].",
        **INVALID),
    Row("CreateStack of a stack that exists",
        lambda a: Stack(a).create().call("create_stack", TemplateBody=body(template())), STACKS + "test_name_conflicts",
        code="AlreadyExistsException", words="already exists", status=400),
    Row("change set with an existing name", lambda a: sets(Stack(a), "x", "x"),
        "https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateChangeSet.html",
        code="AlreadyExistsException", status=400),
    Row("change set with the name of an executed change set", reused, f"{RECORDED}test_change_set_ref.snapshot.json"),
    Row("change set open during another's execution", obsolete, CHANGE_SETS + "test_create_while_in_review",
        holds=lambda it: it == "OBSOLETE"),
    Row("executed change set", executed, CHANGE_SETS + "test_name_conflicts",
        holds=lambda found: found == "EXECUTE_COMPLETE"),
    Row("executed change sets in the list",
        lambda a: Stack(a).create().call("list_change_sets")["Summaries"],
        "https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_ExecuteChangeSet.html",
        holds=lambda found: found == []),
    Row("execution of a change set without changes",
        lambda a: (stack := Stack(a).create()).described(template(), "UPDATE") and stack.execute("described"),
        CHANGE_SETS + "test_empty_changeset", code="InvalidChangeSetStatus",
        words="cannot be executed in its current status of [FAILED]", status=400),
    Row("fields of a change set without parameters or tags",
        lambda a: Stack(a).described(template()), CHANGE_SETS + "test_name_conflicts",
        holds=lambda found: {*found} == {
            "Capabilities", "ChangeSetId", "ChangeSetName", "Changes", "CreationTime", "ExecutionStatus",
            "IncludeNestedStacks", "NotificationARNs", "ResponseMetadata", "RollbackConfiguration", "StackId",
            "StackName", "Status"}),
    Row("fields of a stack under review", lambda a: sets(stack := Stack(a), "x") and stack.shown(),
        CHANGE_SETS + "test_name_conflicts",
        holds=lambda found: found["StackStatusReason"] == "User Initiated" and "Outputs" not in found),
    Row("deletion of a stack during its creation", deleted_early,
        "https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_DeleteStack.html",
        holds=lambda found: found == "DELETE_COMPLETE"),
    Row("fields of a deleted stack",
        lambda a: (arn := (stack := Stack(a).create()).shown()["StackId"], stack.call("delete_stack"),
                   stack.cfn.get_waiter("stack_delete_complete").wait(
                       StackName=arn, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400}),
                   stack.cfn.describe_stacks(StackName=arn)["Stacks"][0])[-1],
        CHANGE_SETS + "test_name_conflicts",
        holds=lambda found: not {"ChangeSetId", "EnableTerminationProtection", "StackStatusReason"} & found.keys()),
    Row("added resource", lambda a: Stack(a).described(template(), values=True)["Changes"][0]["ResourceChange"],
        f"{RECORDED}test_change_set_fn_sub.snapshot.json", holds=lambda found: "Replacement" not in found),
    Row("changed property value", updated(template(), template({"A": parameter("2")})),
        f"{RECORDED}test_change_sets.snapshot.json#TestCaptureUpdateProcess::test_direct_update",
        holds=details("A", ("DirectModification", "Static"))),
    Row("changed parameter", updated(
        template({"A": parameter({"Ref": "P"})}, Parameters={"P": {"Type": "String", "Default": "1"}}),
        template({"A": parameter({"Ref": "P"})}, Parameters={"P": {"Type": "String", "Default": "2"}})),
        f"{RECORDED}test_change_set_parameters.snapshot.json#test_update_parameter_default_value",
        holds=details("A", ("DirectModification", "Dynamic"), ("ParameterReference", "Static"))),
    *(Row(f"reference to a replaced resource{' with values' if values else ''}", updated(
        template({"A": topic(TopicName="truth-1"), "B": parameter({"Ref": "A"})}),
        template({"A": topic(TopicName="truth-2"), "B": parameter({"Ref": "A"})}), values),
        f"{RECORDED}test_change_set_ref.snapshot.json#test_immutable_property_update_causes_resource_replacement",
        holds=details("B", ("ResourceReference", "Static"), *([("DirectModification", "Dynamic")] if values else [])))
      for values in (False, True)),
    Row("attribute of an updated resource", updated(
        TWO, template({**TWO["Resources"], "A": parameter("2")})),
        f"{RECORDED}test_change_set_fn_get_attr.snapshot.json#test_direct_attribute_value_change",
        holds=details("C", ("ResourceAttribute", "Dynamic"))),
    Row("attribute of an updated resource with values", updated(
        TWO, template({**TWO["Resources"], "A": parameter("2")}), values=True),
        f"{RECORDED}test_change_set_fn_get_attr.snapshot.json#test_direct_attribute_value_change",
        holds=lambda found: {*found} == {"A"}),
    Row("removed resource with a reference", updated(TWO, template({"A": parameter()}), values=True),
        f"{RECORDED}test_change_set_fn_get_attr.snapshot.json#test_resource_deletion",
        holds=lambda found: "{{changeSet:KNOWN_AFTER_APPLY}}" in found["B"]["BeforeContext"]),
    Row("events of a resource", lambda a: [(each["ResourceStatus"], each.get("ResourceStatusReason"))
        for each in Stack(a).create().events() if each["LogicalResourceId"] == "A"],
        STACKS + "TestStacksApi::test_list_events_after_deployment",
        holds=lambda found: found == [("CREATE_COMPLETE", None), ("CREATE_IN_PROGRESS", "Resource creation Initiated"),
                                      ("CREATE_IN_PROGRESS", None)]),
    Row("ID and properties of an event", lambda a: Stack(a).create().events()[1],
        STACKS + "TestStacksApi::test_list_events_after_deployment",
        holds=lambda found: found["EventId"].startswith("A-CREATE_COMPLETE-")
        and json.loads(found["ResourceProperties"]) == {"Type": "String", "Value": "1"}),
    Row("drift of a type that is not compared", drifted, DRIFT, holds=lambda found: found == "NOT_CHECKED"),
    Row("template of a change set by name only",
        lambda a: a.client("cloudformation").get_template(ChangeSetName="does-not-exist"),
        TEMPLATES + "test_get_template_missing_resources_change_set", words="StackName is a required parameter.",
        **INVALID),
    Row("template without a stack or change set", lambda a: a.client("cloudformation").get_template(),
        TEMPLATES + "test_get_template_no_arguments",
        words="StackName is required if ChangeSetName is not specified.", **INVALID),
    Row("summary of a stack under review",
        lambda a: sets(stack := Stack(a), "x") and stack.call("get_template_summary"),
        TEMPLATES + "test_get_template_summary_non_executed_change_set",
        words="GetTemplateSummary cannot be called on REVIEW_IN_PROGRESS stacks.", **INVALID),
    Row("template at an s3:// URL", lambda a: Stack(a).call(
        "create_stack", TemplateURL="s3://b/test/template.yml"),
        TEMPLATES + "test_create_stack_from_s3_template_url[s3_url]",
        words="S3 error: Domain name specified in b is not a valid S3 domain", **INVALID),
    Row("template on another site", lambda a: Stack(a).call("create_stack", TemplateURL="https://example.com/dummy.yml"),
        TEMPLATES + "test_create_stack_from_s3_template_url[http_invalid]",
        words="TemplateURL must be a supported URL.",
        **INVALID),
    Row("role that does not exist", creating(template(), RoleARN="arn:aws:iam::123456789012:role/does-not-exist"),
        f"{RECORDED}api/test_update_stack.snapshot.json#test_update_with_role_without_permissions",
        words="is invalid or cannot be assumed", **INVALID),
    Row("parameter that does not exist", lambda a: a.client("ssm").get_parameter(Name="/does/not/exist"),
        f"{RECORDED}resources/test_ssm.snapshot.json#test_parameter_defaults", code="ParameterNotFound", status=400,
        holds=bool),
]  # fmt: skip
