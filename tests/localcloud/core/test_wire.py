"""HTTP requests: streamed bodies, encoded keys, virtual hosts, observers and internal errors."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import urllib.request
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials as Keys
from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Handler, Observer
from localcloud.cloud import LocalCloud
from localcloud.gateway import Gateway
from localcloud.iam.identity import ROOT_ACCESS_KEY_ID
from localcloud.tokens import TOKEN_HEADER
from tests.localcloud.core.conftest import as_role, make_role


class Recorder:
    """Service that handles some operations and observes others."""

    name = "ssm"

    def __init__(self) -> None:
        self.seen: list[tuple[str, Mapping[str, Any]]] = []

    def operations(self) -> Mapping[str, Handler]:
        return {"GetInventory": self._answer, "GetInventorySchema": self._fail, "GetOpsItem": self._refuse}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        return {
            ("ssm", "PutParameter"): self._watch,
            ("s3", "PutObject"): self._watch,
            ("s3", "GetObject"): self._watch,
            ("sqs", "CreateQueue"): self._watch,
            ("ec2", "CreateVpc"): self._watch,
        }

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        return (200, f"{method} {path} {body.decode()}".encode()) if path.startswith("echo") else (404, b"")

    def close(self) -> None:
        pass

    def _answer(self, call: Call) -> Mapping[str, Any]:
        return {"Entities": [{"Id": call.principal.arn}]}

    def _fail(self, call: Call) -> Mapping[str, Any]:
        raise KeyError("internal error")

    def _refuse(self, call: Call) -> Mapping[str, Any]:
        raise ApiError("OpsItemNotFoundException", 'no <such> "item"')

    def _watch(self, call: Call, answer: Mapping[str, Any]) -> None:
        self.seen.append((call.operation, answer))


@pytest.fixture(scope="module")
def recorder(cloud: LocalCloud) -> Recorder:
    gateway = cloud._server.wsgi_app
    assert isinstance(gateway, Gateway)
    found = Recorder()
    gateway.add(found)
    return found


def refused(code: str, words: str = "") -> pytest.RaisesExc:
    def fits(error: ClientError) -> bool:
        return error.response["Error"]["Code"] == code and words in error.response["Error"]["Message"]

    return pytest.RaisesExc(ClientError, check=fits)


def test_local_service_returns_results_and_errors(cloud: LocalCloud, recorder: Recorder) -> None:
    ssm = cloud.clients.client("ssm")
    assert ssm.get_inventory()["Entities"][0]["Id"].endswith(":root")
    with refused("OpsItemNotFoundException", 'no <such> "item"'):
        ssm.get_ops_item(OpsItemId="x")
    with refused("InternalFailure", "internal error"):
        ssm.get_inventory_schema()


def test_observers_receive_the_output_without_a_body(cloud: LocalCloud, recorder: Recorder) -> None:
    recorder.seen.clear()
    s3 = cloud.clients.client("s3")
    s3.create_bucket(Bucket="watched")
    s3.put_object(Bucket="watched", Key="k", Body=b"data")
    assert s3.get_object(Bucket="watched", Key="k")["Body"].read() == b"data"
    version = cloud.clients.client("ssm").put_parameter(Name="/watched", Value="v", Type="String")["Version"]
    url = cloud.clients.client("sqs").create_queue(QueueName="watched")["QueueUrl"]
    vpc = cloud.clients.client("ec2").create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    seen = dict(recorder.seen)
    assert seen["PutObject"]["ETag"] == '"8d777f385d3dfec8815d20f7496026dc"'
    assert "data" not in repr(seen["GetObject"].get("Body", b""))
    assert seen["PutParameter"]["Version"] == version
    assert seen["CreateQueue"]["QueueUrl"] == url
    assert seen["CreateVpc"]["Vpc"]["VpcId"] == vpc
    with refused("ParameterAlreadyExists"):
        cloud.clients.client("ssm").put_parameter(Name="/watched", Value="v", Type="String")
    assert [operation for operation, _ in recorder.seen].count("PutParameter") == 1


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded"])
def test_unsigned_path_reaches_the_service(cloud: LocalCloud, recorder: Recorder, content_type: str) -> None:
    url, token = f"{cloud.endpoint_url}/_localcloud/ssm/echo?a=1", {TOKEN_HEADER: cloud.control_token}
    request = urllib.request.Request(url, data=b'{"x": "1"}', headers={"Content-Type": content_type, **token})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b'POST echo?a=1 {"x": "1"}'
    with pytest.raises(urllib.error.HTTPError, match="404"):
        request = urllib.request.Request(f"{cloud.endpoint_url}/_localcloud/ssm/nothing", headers=token)
        urllib.request.urlopen(request, timeout=10)


@pytest.mark.parametrize(
    ("service", "call", "parameters", "operation"),
    [
        ("codeconnections", "list_connections", {}, "codeconnections:ListConnections"),
        ("ec2", "describe_capacity_blocks", {}, "ec2:DescribeCapacityBlocks"),
        ("lambda", "get_function_recursion_config", {"FunctionName": "f"}, "lambda:GetFunctionRecursionConfig"),
        # moto has these, but they would have no effect.
        ("lambda", "publish_layer_version", {"LayerName": "l", "Content": {}}, "lambda:PublishLayerVersion"),
        (
            *("lambda", "put_function_event_invoke_config", {"FunctionName": "f"}),
            "lambda:PutFunctionEventInvokeConfig",
        ),
    ],
)
def test_operation_not_implemented_is_returned_and_recorded(
    cloud: LocalCloud, service: str, call: str, parameters: dict[str, Any], operation: str
) -> None:
    with refused("NotImplemented", operation):
        getattr(cloud.clients.client(service), call)(**parameters)
    lines = (cloud.state_directory / "records.jsonl").read_text().splitlines()
    assert operation in [one["operation"] for one in map(json.loads, lines) if one["kind"] == "not_implemented"]


@pytest.mark.parametrize(
    ("service", "call"),
    [("elbv2", "describe_load_balancers"), ("efs", "describe_file_systems"), ("cloudwatch", "describe_alarms")],
)
def test_services_with_another_signing_name_are_found(cloud: LocalCloud, service: str, call: str) -> None:
    assert getattr(cloud.clients.client(service), call)()["ResponseMetadata"]["HTTPStatusCode"] == 200


@pytest.mark.parametrize("key", ["a b+c", "x/../y", "100%/é", "trailing/", "with?query&=#", "a//b", "%2F"])
def test_keys_survive_encoding(cloud: LocalCloud, key: str) -> None:
    root = cloud.clients.client("s3")
    root.create_bucket(Bucket="keys")
    arn = make_role(cloud, f"keys{abs(hash(key))}", {"Action": ["s3:*Object", "s3:ListBucket"], "Resource": "*"})
    s3 = as_role(cloud, arn, "s3")
    s3.put_object(Bucket="keys", Key=key, Body=key.encode(), Metadata={"with_underscore": "kept"})
    found = s3.get_object(Bucket="keys", Key=key)
    assert found["Body"].read() == key.encode()
    assert found["Metadata"] == {"with_underscore": "kept"}
    assert key in [one["Key"] for one in s3.list_objects_v2(Bucket="keys")["Contents"]]


def test_bucket_in_the_host(cloud: LocalCloud) -> None:
    root = cloud.clients.client("s3")
    root.create_bucket(Bucket="hosted")
    port = urlsplit(cloud.endpoint_url).port
    s3 = boto3.client(
        "s3",
        endpoint_url=f"http://localhost:{port}",
        region_name="us-east-1",
        aws_access_key_id=ROOT_ACCESS_KEY_ID,
        aws_secret_access_key=cloud.identity.root_secret,
        config=Config(s3={"addressing_style": "virtual"}),
    )
    sent_to = []

    def to_loopback(request: Any, **_: Any) -> None:
        # Some resolvers cannot resolve *.localhost, so connect to 127.0.0.1 and send the name in the Host header.
        sent_to.append(urlsplit(request.url).netloc)
        request.headers["Host"] = sent_to[-1]
        request.url = request.url.replace(f"hosted.localhost:{port}", f"127.0.0.1:{port}")

    s3.meta.events.register("before-send", to_loopback)
    s3.put_object(Bucket="hosted", Key="a/b c", Body=b"x")
    assert sent_to == [f"hosted.localhost:{port}"]
    assert root.get_object(Bucket="hosted", Key="a/b c")["Body"].read() == b"x"


def put_raw(cloud: LocalCloud, path: str, headers: Mapping[str, str], body: bytes, chunk_bytes: int | None) -> int:
    """PUT a body with a signed header and return the status."""
    request = AWSRequest("PUT", cloud.endpoint_url + path, headers=dict(headers))
    request.context["checksum"] = {"request_algorithm": {"in": "trailer"}}
    S3SigV4Auth(Keys(ROOT_ACCESS_KEY_ID, cloud.identity.root_secret), "s3", "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection(urlsplit(cloud.endpoint_url).netloc, timeout=20)
    source = io.BytesIO(body)
    chunks = iter(lambda: source.read(chunk_bytes), b"") if chunk_bytes else body
    connection.request("PUT", path, chunks, dict(request.headers.items()), encode_chunked=chunk_bytes is not None)
    return connection.getresponse().status


def put_framed(cloud: LocalCloud, data: bytes, checksum: bytes, *, transfer_chunked: bool) -> int:
    size = len(data)
    pieces = [data[i : i + 65536] for i in range(0, size, 65536)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    framed += b"0\r\nx-amz-checksum-crc32:" + checksum + b"\r\n\r\n"
    headers = {
        "x-amz-trailer": "x-amz-checksum-crc32",
        "x-amz-sdk-checksum-algorithm": "CRC32",
        "x-amz-decoded-content-length": str(size),
        "Content-Encoding": "aws-chunked",
        "Expect": "100-continue",
    }
    headers["Transfer-Encoding" if transfer_chunked else "Content-Length"] = (
        "chunked" if transfer_chunked else str(len(framed))
    )
    return put_raw(cloud, "/trailers/k", headers, framed, 70_001 if transfer_chunked else None)


@pytest.mark.parametrize("size", [100_000, 9 << 20])
@pytest.mark.parametrize("transfer_chunked", [False, True])
def test_chunked_body_with_a_trailing_checksum(cloud: LocalCloud, size: int, transfer_chunked: bool) -> None:
    s3 = cloud.clients.client("s3")
    s3.create_bucket(Bucket="trailers")
    data = os.urandom(size)
    checksum = base64.b64encode(zlib.crc32(data).to_bytes(4, "big"))
    assert put_framed(cloud, data, checksum, transfer_chunked=transfer_chunked) == 200
    found = s3.get_object(Bucket="trailers", Key="k")
    assert found["Body"].read() == data
    assert "ContentEncoding" not in found
    assert put_framed(cloud, b"damaged", checksum, transfer_chunked=transfer_chunked) == 400
    assert s3.head_object(Bucket="trailers", Key="k")["ContentLength"] == size


def test_chunked_transfer_of_parameters(cloud: LocalCloud, recorder: Recorder) -> None:
    connection = http.client.HTTPConnection(urlsplit(cloud.endpoint_url).netloc, timeout=20)
    token = {TOKEN_HEADER: cloud.control_token}
    connection.request("POST", "/_localcloud/ssm/echo", iter([b"a", b"b" * 70_000]), token, encode_chunked=True)
    answer = connection.getresponse()
    assert answer.read() == b"POST echo a" + b"b" * 70_000
