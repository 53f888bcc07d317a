"""Templates, parameters and intrinsic functions."""

from __future__ import annotations

import base64
import io
import ipaddress
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localcloud.api import ApiError
from localcloud.cloudformation.templates.intrinsics import Resolver
from localcloud.cloudformation.templates.template import load_template

EVERY_INTRINSIC = """
AWSTemplateFormatVersion: 2010-09-09
Description: every intrinsic function, in its short and long forms
Parameters:
  Name: {Type: String, Default: alpha, AllowedPattern: "[a-z]+"}
  Count: {Type: Number, Default: 3, MinValue: 1, MaxValue: 5}
  Zones: {Type: CommaDelimitedList, Default: "x, y,z"}
  Secret: {Type: String, NoEcho: true, Default: hidden}
Mappings:
  Sizes:
    eu-west-1: {small: "1", list: [p, q]}
Conditions:
  IsAlpha: !Equals [!Ref Name, alpha]
  IsBeta: !Equals [!Ref Name, beta]
  Both: !And [!Condition IsAlpha, !Not [!Condition IsBeta]]
  Either: !Or [!Condition IsAlpha, !Condition IsBeta]
Rules:
  NameIsKnown:
    Assertions:
      - Assert: !Contains [[alpha, beta], !Ref Name]
        AssertDescription: Name is alpha or beta
Resources:
  A:
    Type: AWS::SSM::Parameter
    Condition: Both
    Properties: {Type: String, Value: 2026-11-28}
  NeverMade:
    Type: AWS::SSM::Parameter
    Condition: IsBeta
    Properties: {Type: String, Value: "1"}
Outputs:
  Ref: {Value: !Ref Name}
  GetAtt: {Value: !GetAtt A.Arn}
  GetAttList: {Value: {"Fn::GetAtt": [A, Arn]}}
  Sub: {Value: !Sub "${Name}-${A.Arn}-${!Literal}-${AWS::Region}"}
  SubMap: {Value: !Sub ["${x}/${Name}", {x: !Ref Count}]}
  Join: {Value: !Join [":", [!Ref Name, b, !Ref "AWS::NoValue"]]}
  JoinList: {Value: !Join ["+", !Ref Zones]}
  Select: {Value: !Select [1, !Ref Zones]}
  Split: {Value: !Select ["2", !Split [",", "a,b,c"]]}
  FindInMap: {Value: !FindInMap [Sizes, !Ref "AWS::Region", small]}
  FindInMapDefault: {Value: !FindInMap [Sizes, nowhere, small, {DefaultValue: none}]}
  If: {Value: !If [IsAlpha, "yes", "no"]}
  Either: {Value: !If [Either, "yes", "no"]}
  Base64: {Value: !Base64 {"Fn::Sub": "#!/bin/sh ${Name}"}}
  Cidr: {Value: !Join [",", !Cidr [10.0.0.0/16, 2, 8]]}
  GetAZs: {Value: !Join [",", !GetAZs ""]}
  Length: {Value: {"Fn::Length": !Ref Zones}}
  ToJsonString: {Value: {"Fn::ToJsonString": {name: !Ref Name, none: !Ref "AWS::NoValue", list: [1, true]}}}
  Dynamic: {Value: "v:{{resolve:ssm:/image}}"}
  Account: {Value: !Ref "AWS::AccountId"}
  Suffix: {Value: !Ref "AWS::URLSuffix"}
  Partition: {Value: !Ref "AWS::Partition"}
  StackName: {Value: !Ref "AWS::StackName"}
"""


def test_every_intrinsic_function(cloud):
    assert cloud.deploy("app", EVERY_INTRINSIC) == "CREATE_COMPLETE"
    arn = f"arn:aws:fake:eu-west-1:123456789012:{cloud.physical_id('app', 'A')}"
    assert cloud.outputs("app") == {
        "Ref": "alpha",
        "GetAtt": arn,
        "GetAttList": arn,
        "Sub": f"alpha-{arn}-${{Literal}}-eu-west-1",
        "SubMap": "3/alpha",
        "Join": "alpha:b",
        "JoinList": "x+y+z",
        "Select": "y",
        "Split": "c",
        "FindInMap": "1",
        "FindInMapDefault": "none",
        "If": "yes",
        "Either": "yes",
        "Base64": base64.b64encode(b"#!/bin/sh alpha").decode(),
        "Cidr": "10.0.0.0/24,10.0.1.0/24",
        "GetAZs": "eu-west-1a,eu-west-1b,eu-west-1c",
        "Length": "3",
        "ToJsonString": '{"name":"alpha","list":[1,true]}',
        "Dynamic": "v:ami-1",
        "Account": "123456789012",
        "Suffix": "amazonaws.com",
        "Partition": "aws",
        "StackName": "app",
    }
    shown = {p["ParameterKey"]: p["ParameterValue"] for p in cloud.stack("app")["Parameters"]}
    assert shown == {"Name": "alpha", "Count": "3", "Zones": "x, y,z", "Secret": "****"}


def minimal(**sections: Any) -> str:
    value = {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": "1"}}
    return json.dumps({"Resources": {"A": value}, **sections})


def refusal(cloud, body: str, **more: Any) -> str:
    with pytest.raises(ApiError) as refused:
        cloud("CreateStack", StackName="app", TemplateBody=body, **more)
    assert refused.value.code == "ValidationError"
    return refused.value.message


@pytest.mark.parametrize(
    ("definition", "value", "words"),
    [
        ({"Type": "String"}, None, ["P", "must have values"]),
        ({"Type": "String", "AllowedValues": ["a", "b"]}, "c", ["P", "one of"]),
        ({"Type": "String", "AllowedPattern": "[a-z]+", "ConstraintDescription": "letters"}, "1", ["P", "letters"]),
        ({"Type": "String", "MinLength": 2}, "c", ["P", "2"]),
        ({"Type": "String", "MaxLength": 2}, "ccc", ["P", "2"]),
        ({"Type": "Number", "MinValue": 2}, "1", ["P", "2"]),
        ({"Type": "Number", "MaxValue": 2}, "3", ["P", "2"]),
        ({"Type": "Number"}, "many", ["P", "number"]),
    ],
)
def test_parameter_constraints_are_checked(cloud, definition, value, words):
    given_values = [] if value is None else [{"ParameterKey": "P", "ParameterValue": value}]
    message = refusal(cloud, minimal(Parameters={"P": definition}), Parameters=given_values)
    assert all(word in message for word in words), message


def test_all_invalid_parameters_are_reported(cloud):
    parameters = {name: {"Type": "Number", "MaxValue": 1} for name in ("First", "Second")}
    values = [{"ParameterKey": name, "ParameterValue": "2"} for name in parameters]
    message = refusal(cloud, minimal(Parameters=parameters), Parameters=values)
    assert "First" in message
    assert "Second" in message


def test_unknown_parameters_are_rejected(cloud):
    message = refusal(cloud, minimal(), Parameters=[{"ParameterKey": "Nope", "ParameterValue": "1"}])
    assert "Nope" in message


def test_previous_values_are_kept(cloud):
    parameter = {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": {"Ref": "P"}}}
    template = {"Parameters": {"P": {"Type": "String"}}, "Resources": {"A": parameter}}
    cloud.deploy("app", template, Parameters=[{"ParameterKey": "P", "ParameterValue": "kept"}])
    parameter["Metadata"] = {"changed": True}
    cloud.deploy("app", template, Parameters=[{"ParameterKey": "P", "UsePreviousValue": True}])
    assert cloud.account.resources[cloud.physical_id("app", "A")]["Value"] == "kept"


def test_failed_rule_is_reported_before_anything_is_created(cloud, account):
    rule = {"R": {"Assertions": [{"Assert": {"Fn::Equals": ["a", "b"]}, "AssertDescription": "a must be b"}]}}
    assert "a must be b" in refusal(cloud, minimal(Rules=rule))
    assert account.resources == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", ["Template format error"]),
        ("[]", ["Template format error"]),
        ("{}", ["Resources"]),
        (minimal(Surprise={}), ["Surprise"]),
        (minimal(Transform="AWS::Serverless-2016-10-31"), ["Transform"]),
        ('{"Resources": {"A": {"Properties": {}}}}', ["A", "Type"]),
        (minimal(Outputs={"O": {"Value": {"Ref": "Ghost"}}}), ["Ghost"]),
        (minimal(Outputs={"O": {"Value": {"Fn::GetAtt": ["Ghost", "Arn"]}}}), ["Ghost"]),
        (minimal(Outputs={"O": {"Value": {"Fn::Sub": "${Ghost}"}}}), ["Ghost"]),
        (minimal(Outputs={"O": {"Value": "1", "Condition": "Ghost"}}), ["Ghost"]),
        ("Resources:\n  A: {Type: 'AWS::S3::Bucket'}\n  A: {Type: 'AWS::S3::Bucket'}\n", ["A"]),
    ],
)
def test_invalid_templates_are_rejected_with_the_reason(cloud, body, words):
    message = refusal(cloud, body)
    assert all(word in message for word in words), message


def test_circular_dependency_lists_the_cycle(cloud):
    def points_to(other: str) -> dict[str, Any]:
        return {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": {"Ref": other}}}

    body = json.dumps({"Resources": {"A": points_to("B"), "B": points_to("C"), "C": points_to("A")}})
    message = refusal(cloud, body)
    assert "ircular dependency" in message
    assert all(name in message for name in "ABC")


def test_unknown_attribute_is_reported(cloud):
    template = {"Resources": {"A": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": "1"}}}}
    template["Outputs"] = {"O": {"Value": {"Fn::GetAtt": ["A", "Colour"]}}}  # type: ignore[assignment]
    with pytest.raises((ApiError, AssertionError), match="Colour"):
        assert cloud.deploy("app", template) == "CREATE_COMPLETE", cloud.events("app")


def test_templates_are_summarised_and_validated(cloud):
    summary = cloud("GetTemplateSummary", TemplateBody=EVERY_INTRINSIC)
    assert {p["ParameterKey"] for p in summary["Parameters"]} == {"Name", "Count", "Zones", "Secret"}
    assert summary["ResourceTypes"] == ["AWS::SSM::Parameter"]
    assert cloud("ValidateTemplate", TemplateBody=EVERY_INTRINSIC)["Description"].startswith("every intrinsic")
    with pytest.raises(ApiError):
        cloud("ValidateTemplate", TemplateBody="{}")


def test_get_template_returns_the_unchanged_template(cloud):
    described = cloud.change_set("app", EVERY_INTRINSIC)
    names = {"StackName": "app", "ChangeSetName": described["ChangeSetName"]}
    assert cloud("GetTemplate", **names)["TemplateBody"] == EVERY_INTRINSIC
    cloud("ExecuteChangeSet", **names)
    cloud.settled("app")
    assert cloud("GetTemplate", StackName="app", TemplateStage="Original")["TemplateBody"] == EVERY_INTRINSIC
    assert "Resources" in cloud("GetTemplate", StackName="app", TemplateStage="Processed")["TemplateBody"]


@pytest.mark.parametrize(
    ("url", "bucket", "key"),
    [
        ("http://localhost:4566/assets/some/key.json", "assets", "some/key.json"),
        ("http://assets.s3.localhost:4566/some/key.json", "assets", "some/key.json"),
        ("https://s3.eu-west-1.amazonaws.com/assets/some/key.json", "assets", "some/key.json"),
        ("https://assets.s3.eu-west-1.amazonaws.com/some/key.json", "assets", "some/key.json"),
        ("https://cdk-hnb-assets.s3.amazonaws.com/some/key.json", "cdk-hnb-assets", "some/key.json"),
    ],
)
def test_templates_are_read_from_s3(cloud, url, bucket, key):
    class Store:
        def get_object(self, Bucket: str, Key: str, **_: Any) -> dict[str, Any]:  # noqa: N803
            assert (Bucket, Key) == (bucket, key)
            return {"Body": io.BytesIO(minimal().encode())}

    cloud.clients.services["s3"] = Store()
    stack_id = cloud("CreateStack", StackName="app", TemplateURL=url)["StackId"]
    assert cloud.settled(stack_id) == "CREATE_COMPLETE"


def resolver() -> Resolver:
    def nothing(*_: Any) -> Any:
        raise AssertionError("unexpected call")

    return Resolver(
        {"Resources": {}},
        {"AWS::Region": "eu-west-1"},
        ref=nothing,
        get_att=nothing,
        import_value=nothing,
        dynamic=nothing,
        zones=nothing,
        stack_output=nothing,
    )


WORDS = st.text(st.characters(codec="ascii", exclude_characters="$|{}"), max_size=12)
PLAIN = st.recursive(
    st.one_of(st.booleans(), st.integers(), WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(WORDS.filter(lambda key: key != "Ref" and not key.startswith("Fn::")), inner, max_size=4),
    ),
)


@settings(deadline=None)
@given(PLAIN)
def test_values_without_functions_are_unchanged(value):
    assert resolver().resolve(value) == value


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6))
def test_split_reverses_join_and_select_returns_an_item(words):
    joined = {"Fn::Join": ["|", words]}
    split = {"Fn::Split": ["|", joined]}
    assert resolver().resolve(split) == words
    for index, word in enumerate(words):
        assert resolver().resolve({"Fn::Select": [str(index), split]}) == word


@settings(deadline=None)
@given(WORDS)
def test_base64_json_and_sub_round_trip(word):
    assert base64.b64decode(resolver().resolve({"Fn::Base64": word})).decode() == word
    assert json.loads(resolver().resolve({"Fn::ToJsonString": {"k": [word]}})) == {"k": [word]}
    assert resolver().resolve({"Fn::Sub": ["a${x}b", {"x": word}]}) == f"a{word}b"


@settings(deadline=None)
@given(st.integers(16, 24), st.integers(1, 8), st.integers(4, 8))
def test_cidr_blocks_are_disjoint_parts_of_the_block(prefix, count, bits):
    function = {"Fn::Cidr": [f"10.0.0.0/{prefix}", count, bits]}
    if count > 2 ** (32 - bits - prefix):
        with pytest.raises(ApiError, match="contains .* blocks of"):
            resolver().resolve(function)
        return
    networks = [ipaddress.ip_network(block) for block in resolver().resolve(function)]
    assert len(networks) == count
    assert all(n.subnet_of(ipaddress.ip_network(f"10.0.0.0/{prefix}")) and n.prefixlen == 32 - bits for n in networks)
    assert not any(a.overlaps(b) for i, a in enumerate(networks) for b in networks[:i])


def test_yaml_and_json_templates_are_equal():
    yaml_body = "Resources: {A: {Type: 'AWS::S3::Bucket', Properties: {BucketName: !Sub '${AWS::StackName}-x'}}}"
    json_body = (
        '{"Resources": {"A": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": {"Fn::Sub": '
        '"${AWS::StackName}-x"}}}}}'
    )
    assert load_template(yaml_body) == load_template(json_body)
