"""S3: conditions, checksums and multipart uploads.

The sources are LocalStack's snapshot tests, whose responses were recorded on AWS, and botocore's model.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
import zlib
from collections.abc import Callable
from typing import Any

from tests.truth.row import Account, Row

RECORDED = "https://github.com/localstack/localstack/blob/8b9a79f/tests/aws/services/s3/"
API = f"{RECORDED}test_s3_api.snapshot.json#"
S3 = f"{RECORDED}test_s3.snapshot.json#"
PRECONDITION = "At least one of the pre-conditions you specified did not hold"
CONFLICT = "The conditional request cannot succeed due to a conflicting operation against this resource."
NO_UPLOAD = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or"
NO_KEY = "The specified key does not exist."
HEADER = "A header you provided implies functionality that is not implemented"
NO_PART = "One or more of the specified parts could not be found."
SAME = "it is trying to copy an object to itself without changing"
WRONG = base64.b64encode(b"\0" * 32).decode()
LARGE = b"x" * (5 << 20)
EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"


class Bucket:
    """A new bucket, with shortcuts for the rows' calls."""

    def __init__(self, account: Account, *, versioned: bool = False) -> None:
        self.s3 = account.client("s3")
        self.name = f"truth-{uuid.uuid4().hex}"
        self.s3.create_bucket(Bucket=self.name)
        if versioned:
            self.s3.put_bucket_versioning(Bucket=self.name, VersioningConfiguration={"Status": "Enabled"})

    def call(self, operation: str, **parameters: Any) -> Any:
        return getattr(self.s3, operation)(Bucket=self.name, **{"Key": "k", **parameters})

    def put(self, body: bytes = b"test", **parameters: Any) -> Any:
        return self.call("put_object", Body=body, **parameters)

    def copy(self, **parameters: Any) -> Any:
        return self.call("copy_object", CopySource=f"{self.name}/source", **parameters)

    def upload(self, *bodies: bytes, **parameters: Any) -> tuple[str, list[dict[str, Any]]]:
        """Begin an upload with a part for each body; return its ID and the parts."""
        identity = self.call("create_multipart_upload", **parameters)["UploadId"]
        parts = [
            {"PartNumber": number, "ETag": self.part(identity, body, number)["ETag"]}
            for number, body in enumerate(bodies, 1)
        ]
        return identity, parts

    def part(self, identity: str, body: bytes = b"test", number: int = 1, **parameters: Any) -> Any:
        return self.call("upload_part", UploadId=identity, PartNumber=number, Body=body, **parameters)

    def complete(self, upload: tuple[str, list[dict[str, Any]]], **parameters: Any) -> Any:
        identity, parts = upload
        return self.call("complete_multipart_upload", UploadId=identity, MultipartUpload={"Parts": parts}, **parameters)

    def body(self) -> bytes:
        found: bytes = self.call("get_object")["Body"].read()
        return found


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def steps(*calls: Callable[[Bucket], Any], versioned: bool = False) -> Callable[[Account], Any]:
    """Return a function that makes the calls in a new bucket and returns the last response."""

    def send(account: Account) -> Any:
        bucket = Bucket(account, versioned=versioned)
        return [call(bucket) for call in calls][-1]

    return send


def put(**parameters: Any) -> Callable[[Bucket], Any]:
    return lambda bucket: bucket.put(**parameters)


def copy(**parameters: Any) -> Callable[[Bucket], Any]:
    return lambda bucket: bucket.copy(**parameters)


def call(operation: str, **parameters: Any) -> Callable[[Bucket], Any]:
    return lambda bucket: bucket.call(operation, **parameters)


SOURCE = put(Key="source", body=b"source content")
DELETE = call("delete_object")


def put_if_match(body: bytes = b"test") -> Callable[[Bucket], Any]:
    """Return a function that overwrites an object, with its ETag as the condition."""
    return lambda bucket: bucket.put(body, IfMatch=bucket.put(b"before")["ETag"])


def upload_then(*between: Callable[[Bucket], Any], **conditions: Any) -> Callable[[Bucket], Any]:
    """Return a function that begins an upload, makes other calls and completes the upload.

    A condition can be a function of the other calls' responses.
    """

    def send(bucket: Bucket) -> Any:
        upload = bucket.upload(b"test")
        answers = [each(bucket) for each in between]
        found = {name: value(answers) if callable(value) else value for name, value in conditions.items()}
        return bucket.complete(upload, **found)

    return send


def after_put(**between: Any) -> Callable[[Bucket], Any]:
    """Return a function that completes an upload if the object still has its ETag from before the upload."""

    def send(bucket: Bucket) -> Any:
        etag = bucket.put()["ETag"]
        return upload_then(*between.get("calls", ()), IfMatch=etag)(bucket)

    return send


def restarted(bucket: Bucket) -> Any:
    """Delete an object during an upload, and then repeat the upload."""
    bucket.put()
    bucket.upload(b"test")
    bucket.call("delete_object")
    return bucket.complete(bucket.upload(b"test"), IfNoneMatch="*")


def unordered(bucket: Bucket) -> Any:
    identity, parts = bucket.upload(LARGE, b"y")
    return bucket.complete((identity, parts[::-1]))


def repeated_part(bucket: Bucket) -> Any:
    identity, parts = bucket.upload(LARGE)
    return bucket.complete((identity, [*parts, *parts]))


def with_part(**change: Any) -> Callable[[Bucket], Any]:
    def send(bucket: Bucket) -> Any:
        identity, parts = bucket.upload(b"test")
        return bucket.complete((identity, [{**parts[0], **change}]))

    return send


def overwritten_part(bucket: Bucket) -> Any:
    identity, parts = bucket.upload(b"first")
    etag = bucket.part(identity, b"second")["ETag"]
    bucket.complete((identity, [{**parts[0], "ETag": etag}]))
    return bucket.body()


def skipped_numbers(bucket: Bucket) -> Any:
    identity, _ = bucket.upload()
    parts = [{"PartNumber": number, "ETag": bucket.part(identity, LARGE, number)["ETag"]} for number in (3, 7)]
    bucket.complete((identity, parts))
    return len(bucket.body())


def of_upload(operation: str, **parameters: Any) -> Callable[[Bucket], Any]:
    """Return a function that makes a call with an upload's ID and a different key."""

    def send(bucket: Bucket) -> Any:
        identity, parts = bucket.upload(b"test")
        return bucket.call(operation, UploadId=identity, Key="other", **parameters)

    return send


def after_end(operation: str, end: str, **parameters: Any) -> Callable[[Bucket], Any]:
    def send(bucket: Bucket) -> Any:
        upload = bucket.upload(b"test")
        if end == "complete":
            bucket.complete(upload)
        else:
            bucket.call("abort_multipart_upload", UploadId=upload[0])
        return bucket.call(operation, UploadId=upload[0], **parameters)

    return send


def part_with(**parameters: Any) -> Callable[[Bucket], Any]:
    return lambda bucket: bucket.part(bucket.upload()[0], **parameters)


def created(**parameters: Any) -> Callable[[Bucket], Any]:
    return call("create_multipart_upload", **parameters)


def complete_with(**parameters: Any) -> Callable[[Bucket], Any]:
    return lambda bucket: bucket.complete(bucket.upload(b"test"), **parameters)


def deleted_several(bucket: Bucket) -> Any:
    bucket.put()
    upload = bucket.upload(b"test")
    bucket.s3.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": "k"}]})
    return bucket.complete(upload, IfNoneMatch="*")


NOT_THE_UPLOAD = {"code": "NoSuchUpload", "words": NO_UPLOAD, "status": 404}
FAILED = {"code": "PreconditionFailed", "words": PRECONDITION, "status": 412}
IN_CONFLICT = {"code": "ConditionalRequestConflict", "words": CONFLICT, "status": 409}
ABSENT = {"code": "NoSuchKey", "words": NO_KEY, "status": 404}
NO_HEADER = {"code": "NotImplemented", "words": HEADER, "status": 501}
BAD = {"code": "BadDigest", "status": 400}
NOT_MADE = {"code": "InvalidRequest", "status": 400}
MD5_MALFORMED = {"code": "InvalidDigest", "words": "The Content-MD5 you specified was invalid.", "status": 400}
WRITE = f"{API}TestS3ObjectWritePrecondition::"
ERASE = f"{API}TestS3DeletePrecondition::"
SUM = f"{S3}TestS3PutObjectChecksum::"
PARTS = f"{S3}TestS3MultipartUploadChecksum::"

CONDITIONS = [
    Row("PutObject If-None-Match, no object", steps(put(IfNoneMatch="*")), f"{WRITE}test_put_object_if_none_match"),
    Row(
        "PutObject If-None-Match, object exists",
        steps(put(), put(IfNoneMatch="*")),
        f"{WRITE}test_put_object_if_none_match",
        **FAILED,
    ),
    Row(
        "PutObject If-None-Match, object deleted",
        steps(put(), DELETE, put(IfNoneMatch="*")),
        f"{WRITE}test_put_object_if_none_match",
    ),
    Row(
        "PutObject If-None-Match, delete marker",
        steps(put(), DELETE, put(IfNoneMatch="*"), versioned=True),
        f"{WRITE}test_put_object_if_none_match_versioned_bucket",
    ),
    Row(
        "PutObject If-None-Match, object exists, versioned",
        steps(put(), put(IfNoneMatch="*"), versioned=True),
        f"{WRITE}test_put_object_if_none_match_versioned_bucket",
        **FAILED,
    ),
    Row(
        "PutObject If-None-Match with an ETag",
        steps(put(), put(IfNoneMatch=EMPTY_MD5)),
        f"{WRITE}test_put_object_if_none_match_validation",
        **NO_HEADER,
    ),
    Row("PutObject If-Match, own ETag", steps(put_if_match()), f"{WRITE}test_put_object_if_match"),
    Row(
        "PutObject If-Match, other ETag",
        steps(put(), put(IfMatch=EMPTY_MD5)),
        f"{WRITE}test_put_object_if_match",
        **FAILED,
    ),
    Row("PutObject If-Match, no object", steps(put(IfMatch="abcdef")), f"{WRITE}test_put_object_if_match", **ABSENT),
    Row(
        "PutObject If-Match, delete marker",
        steps(put(), DELETE, put(IfMatch=EMPTY_MD5), versioned=True),
        f"{WRITE}test_put_object_if_match_versioned_bucket",
        **ABSENT,
    ),
    Row(
        "PutObject If-Match with a star",
        steps(put(IfMatch="*")),
        f"{WRITE}test_put_object_if_match_validation",
        **NO_HEADER,
    ),
    Row(
        "PutObject If-Match and If-None-Match",
        steps(put(IfMatch="abcdef", IfNoneMatch="*")),
        f"{WRITE}test_put_object_if_match_and_if_none_match_validation",
        **NO_HEADER,
    ),
    Row(
        "CompleteMultipartUpload If-None-Match, no object",
        steps(upload_then(IfNoneMatch="*")),
        f"{WRITE}test_multipart_if_none_match_with_delete",
    ),
    Row(
        "CompleteMultipartUpload If-None-Match, object exists",
        steps(put(), upload_then(IfNoneMatch="*")),
        f"{WRITE}test_multipart_if_none_match_with_delete",
        **FAILED,
    ),
    Row(
        "CompleteMultipartUpload If-None-Match, put during the upload",
        steps(upload_then(put(), IfNoneMatch="*")),
        f"{WRITE}test_multipart_if_none_match_with_put",
        **FAILED,
    ),
    Row(
        "CompleteMultipartUpload If-None-Match, deleted during the upload",
        steps(put(), upload_then(DELETE, IfNoneMatch="*")),
        f"{WRITE}test_multipart_if_none_match_with_delete",
        **IN_CONFLICT,
    ),
    Row(
        "CompleteMultipartUpload If-None-Match, deleted by DeleteObjects during the upload",
        steps(deleted_several),
        f"{WRITE}test_multipart_if_none_match_with_delete",
        **IN_CONFLICT,
    ),
    Row(
        "CompleteMultipartUpload If-None-Match, restarted",
        steps(restarted),
        f"{WRITE}test_multipart_if_none_match_with_delete",
    ),
    Row("CompleteMultipartUpload If-Match, own ETag", steps(after_put()), f"{WRITE}test_multipart_if_match_etag"),
    Row(
        "CompleteMultipartUpload If-Match, other ETag",
        steps(put(), upload_then(IfMatch=EMPTY_MD5)),
        f"{WRITE}test_multipart_if_match_etag",
        **FAILED,
    ),
    Row(
        "CompleteMultipartUpload If-Match, overwritten during the upload",
        steps(after_put(calls=[put(body=b"test2")])),
        f"{WRITE}test_multipart_if_match_with_put",
        **FAILED,
    ),
    Row(
        "CompleteMultipartUpload If-Match, ETag of a put during the upload",
        steps(put(), upload_then(put(body=b"test2"), IfMatch=lambda answers: answers[-1]["ETag"])),
        f"{WRITE}test_multipart_if_match_with_put",
        **IN_CONFLICT,
    ),
    Row(
        "CompleteMultipartUpload If-Match, same object put during the upload",
        steps(after_put(calls=[put()])),
        f"{WRITE}test_multipart_if_match_with_put_identical",
        **IN_CONFLICT,
    ),
    Row(
        "CompleteMultipartUpload If-Match, deleted during the upload",
        steps(after_put(calls=[DELETE])),
        f"{WRITE}test_multipart_if_match_with_delete",
        **ABSENT,
    ),
    Row(
        "CompleteMultipartUpload If-Match, deleted and put during the upload",
        steps(after_put(calls=[DELETE, put()])),
        f"{WRITE}test_multipart_if_match_with_delete",
        **IN_CONFLICT,
    ),
    Row(
        "CopyObject If-None-Match, no object",
        steps(SOURCE, copy(IfNoneMatch="*")),
        f"{WRITE}test_copy_object_if_none_match",
    ),
    Row(
        "CopyObject If-None-Match, object exists",
        steps(SOURCE, put(), copy(IfNoneMatch="*")),
        f"{WRITE}test_copy_object_if_none_match",
        **FAILED,
    ),
    Row(
        "CopyObject If-None-Match, delete marker",
        steps(SOURCE, put(), DELETE, copy(IfNoneMatch="*"), versioned=True),
        f"{WRITE}test_copy_object_if_none_match_versioned_bucket",
    ),
    Row(
        "CopyObject If-None-Match in place",
        steps(SOURCE, copy(Key="source", IfNoneMatch="*", StorageClass="STANDARD")),
        f"{WRITE}test_copy_object_if_none_match_in_place",
        **FAILED,
    ),
    Row(
        "CopyObject If-None-Match with an ETag",
        steps(SOURCE, copy(IfNoneMatch=EMPTY_MD5)),
        f"{WRITE}test_copy_object_precondition_write_validation",
        **NO_HEADER,
    ),
    Row(
        "CopyObject If-Match, own ETag",
        steps(SOURCE, lambda bucket: bucket.copy(IfMatch=bucket.put()["ETag"])),
        f"{WRITE}test_copy_object_if_match",
    ),
    Row(
        "CopyObject If-Match, other ETag",
        steps(SOURCE, put(), copy(IfMatch='"wrong-etag"')),
        f"{WRITE}test_copy_object_if_match",
        **FAILED,
    ),
    Row(
        "CopyObject If-Match, no object",
        steps(SOURCE, copy(IfMatch=EMPTY_MD5)),
        f"{WRITE}test_copy_object_if_match",
        **ABSENT,
    ),
    Row(
        "CopyObject If-Match, delete marker",
        steps(SOURCE, put(), DELETE, copy(IfMatch=EMPTY_MD5), versioned=True),
        f"{WRITE}test_copy_object_if_match_versioned_bucket",
        **ABSENT,
    ),
    Row(
        "CopyObject If-Match with a star",
        steps(SOURCE, copy(IfMatch="*")),
        f"{WRITE}test_copy_object_precondition_write_validation",
        **NO_HEADER,
    ),
    Row(
        "CopyObject If-Match and If-None-Match",
        steps(SOURCE, copy(IfMatch="*", IfNoneMatch=EMPTY_MD5)),
        f"{WRITE}test_copy_object_precondition_write_validation",
        **NO_HEADER,
    ),
    Row(
        "DeleteObject If-Match, other ETag",
        steps(put(), call("delete_object", IfMatch="badvalue")),
        f"{ERASE}test_delete_object_if_match_non_express",
        **FAILED,
    ),
    Row(
        "DeleteObject If-Match size",
        steps(put(), call("delete_object", IfMatchSize=10)),
        f"{ERASE}test_delete_object_if_match_size_non_express",
        **NO_HEADER,
    ),
    Row(
        "DeleteObject If-Match last modified",
        steps(put(), call("delete_object", IfMatchLastModifiedTime=0)),
        f"{ERASE}test_delete_object_if_match_modified_non_express",
        **NO_HEADER,
    ),
    Row(
        "GetObject If-Match, other ETag",
        steps(put(), call("get_object", IfMatch=EMPTY_MD5)),
        f"{S3}TestS3::test_s3_get_object_preconditions[get_object]",
        **FAILED,
    ),
    Row(
        "GetObject If-None-Match, own ETag without quotes",
        steps(put(body=b""), call("get_object", IfNoneMatch=EMPTY_MD5)),
        f"{S3}TestS3::test_s3_get_object_preconditions[get_object]",
        code="304",
        words="Not Modified",
        status=304,
    ),
    Row(
        "HeadObject If-Match, other ETag",
        steps(put(), call("head_object", IfMatch=EMPTY_MD5)),
        f"{S3}TestS3::test_s3_get_object_preconditions[head_object]",
        code="412",
        words="Precondition Failed",
        status=412,
    ),
    Row(
        "CopyObject source If-Match, other ETag",
        steps(SOURCE, copy(CopySourceIfMatch=EMPTY_MD5)),
        "botocore: s3, CopyObject, CopySourceIfMatch",
        **FAILED,
    ),
    Row(
        "CopyObject source If-None-Match, own ETag",
        steps(put(Key="source", body=b""), copy(CopySourceIfNoneMatch=EMPTY_MD5)),
        "botocore: s3, CopyObject, CopySourceIfNoneMatch",
        **FAILED,
    ),
]

COPIES = [
    Row(
        "CopyObject in place without a change",
        steps(SOURCE, copy(Key="source")),
        f"{S3}TestS3::test_s3_copy_object_in_place",
        words=SAME,
        **NOT_MADE,
    ),
    Row(
        "CopyObject in place with a storage class",
        steps(SOURCE, copy(Key="source", StorageClass="STANDARD")),
        f"{S3}TestS3::test_s3_copy_object_in_place_storage_class",
    ),
    Row(
        "CopyObject in place with metadata",
        steps(SOURCE, copy(Key="source", MetadataDirective="REPLACE", Metadata={"a": "b"})),
        f"{S3}TestS3::test_s3_copy_object_in_place_metadata_directive",
    ),
    Row(
        "CopyObject, no source object",
        steps(copy()),
        f"{S3}TestS3::test_s3_copy_object_src_not_exists",
        **ABSENT,
    ),
    Row(
        "CopyObject, no source bucket",
        steps(call("copy_object", CopySource="truth-no-such-bucket/k")),
        f"{S3}TestS3::test_s3_copy_object_src_not_exists",
        code="NoSuchBucket",
        words="The specified bucket does not exist",
        status=404,
    ),
    Row(
        "CopyObject, source without a key",
        steps(call("copy_object", CopySource="truth-no-such-bucket")),
        f"{S3}TestS3::test_s3_copy_object_wrong_format",
        code="InvalidArgument",
        words="Invalid copy source object key",
        status=400,
    ),
]

CHECKSUMS = [
    Row("PutObject with its CRC32", steps(put(ChecksumCRC32=crc32(b"test"))), f"{SUM}test_put_object_checksum[CRC32]"),
    Row(
        "PutObject with another CRC32",
        steps(put(ChecksumCRC32=crc32(b"other"))),
        f"{SUM}test_put_object_checksum[CRC32]",
        words="The CRC32 you specified did not match the calculated checksum.",
        **BAD,
    ),
    Row(
        "PutObject with a malformed CRC32",
        steps(put(ChecksumCRC32="abc")),
        f"{SUM}test_put_object_checksum[CRC32]",
        words="Value for x-amz-checksum-crc32 header is invalid.",
        **NOT_MADE,
    ),
    Row(
        "PutObject with another SHA1",
        steps(put(ChecksumSHA1=base64.b64encode(b"\0" * 20).decode())),
        f"{SUM}test_put_object_checksum[SHA1]",
        words="The SHA1 you specified did not match the calculated checksum.",
        **BAD,
    ),
    Row(
        "PutObject with its SHA256",
        steps(put(ChecksumSHA256=sha256(b"test"))),
        f"{SUM}test_put_object_checksum[SHA256]",
    ),
    Row(
        "PutObject with another SHA256",
        steps(put(ChecksumSHA256=WRONG)),
        f"{SUM}test_put_object_checksum[SHA256]",
        words="The SHA256 you specified did not match the calculated checksum.",
        **BAD,
    ),
    Row(
        "PutObject of 5 MiB with another SHA256",
        steps(put(body=LARGE, ChecksumSHA256=WRONG)),
        f"{SUM}test_put_object_checksum[SHA256]",
        words="The SHA256 you specified did not match the calculated checksum.",
        **BAD,
    ),
    Row(
        "PutObject with a malformed SHA256",
        steps(put(ChecksumSHA256="abc")),
        f"{SUM}test_s3_checksum_no_algorithm",
        words="Value for x-amz-checksum-sha256 header is invalid.",
        **NOT_MADE,
    ),
    Row(
        "PutObject with two checksums",
        steps(put(ChecksumSHA256=sha256(b"test"), ChecksumCRC32=crc32(b"test"))),
        f"{SUM}test_s3_checksum_no_algorithm",
        words="Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        **NOT_MADE,
    ),
    Row("PutObject with its MD5", steps(put(ContentMD5=md5(b"test"))), f"{S3}TestS3::test_s3_invalid_content_md5"),
    Row(
        "PutObject with another MD5",
        steps(put(ContentMD5=md5(b"other"))),
        f"{S3}TestS3::test_s3_invalid_content_md5",
        words="The Content-MD5 you specified did not match what we received.",
        **BAD,
    ),
    *(
        Row(
            f"PutObject with the malformed MD5 {text!r}",
            steps(put(ContentMD5=text)),
            f"{S3}TestS3::test_s3_invalid_content_md5",
            **MD5_MALFORMED,
        )
        for text in ("__invalid__", "000", "not base64 encoded checksum", "MTIz", "dGVzdC1zdHJpbmc=")
    ),
    Row(
        "UploadPart with another CRC32",
        steps(part_with(ChecksumCRC32=crc32(b"other"))),
        f"{PARTS}test_multipart_upload_part_checksum_exception[CRC32]",
        words="The CRC32 you specified did not match the calculated checksum.",
        **BAD,
    ),
    Row(
        "UploadPart with a malformed SHA256",
        steps(part_with(ChecksumSHA256="abc")),
        f"{PARTS}test_multipart_upload_part_checksum_exception[SHA256]",
        words="Value for x-amz-checksum-sha256 header is invalid.",
        **NOT_MADE,
    ),
    Row(
        "UploadPart with another MD5",
        steps(part_with(ContentMD5=md5(b"other"))),
        f"{S3}TestS3::test_s3_invalid_content_md5",
        words="The Content-MD5 you specified did not match what we received.",
        **BAD,
    ),
    Row(
        "UploadPart with a malformed MD5",
        steps(part_with(ContentMD5="000")),
        f"{S3}TestS3::test_s3_invalid_content_md5",
        **MD5_MALFORMED,
    ),
    Row(
        "CreateMultipartUpload with a checksum type only",
        steps(created(ChecksumType="FULL_OBJECT")),
        f"{PARTS}test_multipart_parts_checksum_exceptions_composite",
        words="The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
        **NOT_MADE,
    ),
    Row(
        "CreateMultipartUpload with a FULL_OBJECT SHA256",
        steps(created(ChecksumAlgorithm="SHA256", ChecksumType="FULL_OBJECT")),
        f"{PARTS}test_multipart_checksum_type_compatibility[FULL_OBJECT-SHA256]",
        words="The FULL_OBJECT checksum type cannot be used with the sha256 checksum algorithm.",
        **NOT_MADE,
    ),
    *(
        Row(
            f"CreateMultipartUpload with a {kind} {algorithm}",
            steps(created(ChecksumAlgorithm=algorithm, ChecksumType=kind)),
            f"{PARTS}test_multipart_checksum_type_compatibility[{kind}-{algorithm}]",
            holds=lambda answer, algorithm=algorithm: answer["ChecksumAlgorithm"] == algorithm,
        )
        for kind, algorithm in (("COMPOSITE", "CRC32"), ("FULL_OBJECT", "CRC32"), ("COMPOSITE", "SHA256"))
    ),
    Row(
        "CompleteMultipartUpload with another CRC32 of a part",
        steps(with_part(ChecksumCRC32=crc32(b"other"))),
        f"{PARTS}test_complete_multipart_parts_checksum_default",
        code="InvalidPart",
        words=NO_PART,
        status=400,
    ),
    Row(
        "CompleteMultipartUpload with another size",
        steps(complete_with(MpuObjectSize=5)),
        f"{PARTS}test_multipart_size_validation",
        words="The provided 'x-amz-mp-object-size' header value 5 does not match what was computed: 4",
        **NOT_MADE,
    ),
    Row(
        "CompleteMultipartUpload with its size",
        steps(complete_with(MpuObjectSize=4)),
        f"{PARTS}test_multipart_size_validation",
    ),
]

UPLOADS = [
    Row(
        "CompleteMultipartUpload, parts out of order",
        steps(unordered),
        f"{S3}TestS3::test_complete_multipart_parts_order",
        code="InvalidPartOrder",
        words="The list of parts was not in ascending order. Parts must be ordered by part number.",
        status=400,
    ),
    Row(
        "CompleteMultipartUpload, same part twice",
        steps(repeated_part),
        "botocore: s3, CompleteMultipartUpload, InvalidPartOrder in the documentation",
        code="InvalidPartOrder",
        status=400,
    ),
    Row(
        "CompleteMultipartUpload, gaps in part numbers",
        steps(skipped_numbers),
        f"{S3}TestS3::test_complete_multipart_parts_order",
        holds=lambda length: length == 2 * len(LARGE),
    ),
    Row(
        "CompleteMultipartUpload, no parts",
        steps(lambda bucket: bucket.complete((bucket.upload(b"test")[0], []))),
        f"{S3}TestS3::test_multipart_complete_multipart_too_small",
        words="You must specify at least one part",
        **NOT_MADE,
    ),
    Row(
        "CompleteMultipartUpload, a small part before the last one",
        steps(lambda bucket: bucket.complete(bucket.upload(b"test", b"test"))),
        f"{S3}TestS3::test_multipart_complete_multipart_too_small",
        code="EntityTooSmall",
        words="Your proposed upload is smaller than the minimum allowed",
        status=400,
    ),
    Row(
        "CompleteMultipartUpload, a part that was not uploaded",
        steps(with_part(PartNumber=2)),
        f"{S3}TestS3::test_multipart_complete_multipart_wrong_part",
        code="InvalidPart",
        words=NO_PART,
        status=400,
    ),
    Row(
        "CompleteMultipartUpload, a part with another ETag",
        steps(with_part(ETag=EMPTY_MD5)),
        f"{S3}TestS3::test_multipart_complete_multipart_wrong_part",
        code="InvalidPart",
        words=NO_PART,
        status=400,
    ),
    Row(
        "UploadPart replaces a part with the same number",
        steps(overwritten_part),
        "botocore: s3, UploadPart: a part with the same number is overwritten",
        holds=lambda body: body == b"second",
    ),
    *(
        Row(
            f"{operation}, no such upload",
            steps(call(operation, UploadId="fakeid", **parameters)),
            f"{S3}TestS3::test_multipart_no_such_upload",
            **NOT_THE_UPLOAD,
        )
        for operation, parameters in (
            ("upload_part", {"PartNumber": 1, "Body": b"test"}),
            ("complete_multipart_upload", {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": EMPTY_MD5}]}}),
            ("abort_multipart_upload", {}),
            ("list_parts", {}),
        )
    ),
    *(
        Row(
            f"{operation}, upload of another key",
            steps(of_upload(operation, **parameters)),
            f"{S3}TestS3::test_multipart_key_validation",
            **NOT_THE_UPLOAD,
        )
        for operation, parameters in (
            ("upload_part", {"PartNumber": 1, "Body": b"test"}),
            ("complete_multipart_upload", {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": EMPTY_MD5}]}}),
            ("abort_multipart_upload", {}),
            ("list_parts", {}),
        )
    ),
    Row(
        "list_parts, completed upload",
        steps(after_end("list_parts", "complete")),
        f"{S3}TestS3::test_multipart_and_list_parts",
        **NOT_THE_UPLOAD,
    ),
    Row(
        "upload_part, aborted upload",
        steps(after_end("upload_part", "abort", PartNumber=1, Body=b"test")),
        "botocore: s3, AbortMultipartUpload: no more parts can be uploaded with the upload's ID",
        **NOT_THE_UPLOAD,
    ),
    *(
        Row(
            f"UploadPart number {number}",
            steps(lambda bucket, number=number: bucket.part(bucket.upload()[0], number=number)),
            f"{S3}TestS3::test_complete_multipart_parts_order",
            code="InvalidArgument",
            words="Part number must be an integer between 1 and 10000, inclusive",
            status=400,
        )
        for number in (-1, 0, 10_001)
    ),
]

ROWS = [*CONDITIONS, *COPIES, *CHECKSUMS, *UPLOADS]
