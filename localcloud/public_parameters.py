"""Parameter Store as every account sees it: the parameters that AWS itself publishes, such as ids of machine images.

An image's parameter answers with an image that exists in the cloud; all other parameters are moto's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Clients, Handler, Observer

# Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-public-parameters-ami.html and
# https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html (2026-11).
IMAGE = re.compile(r"^/aws/service/(ami-amazon-linux-latest|deeplearning/ami)/[\w./-]+$")
PUBLISHED = datetime(2026, 11, 1, tzinfo=timezone.utc)


class PublicParameters:
    """Answers GetParameter and GetParameters (api.Service "ssm")."""

    name = "ssm"

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {"GetParameter": self._get_one, "GetParameters": self._get_many}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Observe nothing."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer nothing unsigned."""
        return 404, b""

    def close(self) -> None:
        """Nothing runs."""

    def _get_one(self, call: Call) -> Mapping[str, Any]:
        return {"Parameter": self._find(call, str(call.parameters["Name"]))}

    def _get_many(self, call: Call) -> Mapping[str, Any]:
        found, missing = [], []
        for name in call.parameters["Names"]:
            try:
                found.append(self._find(call, str(name)))
            except ApiError as error:
                if error.code != "ParameterNotFound":
                    raise
                missing.append(name)
        return {"Parameters": found, "InvalidParameters": missing}

    def _find(self, call: Call, name: str) -> Mapping[str, Any]:
        arguments = {"Name": name}
        if "WithDecryption" in call.parameters:
            arguments["WithDecryption"] = call.parameters["WithDecryption"]
        try:
            parameter: Mapping[str, Any] = self._clients.direct("ssm", region=call.region).get_parameter(**arguments)[
                "Parameter"
            ]
        except ClientError as error:
            if IMAGE.match(name) and error.response["Error"]["Code"] == "ParameterNotFound":
                return self._image(call, name)
            detail = error.response["Error"]
            raise ApiError(detail["Code"], detail["Message"]) from error
        return parameter

    def _image(self, call: Call, name: str) -> Mapping[str, Any]:
        """Return the parameter of an image: the first machine image that the account can launch."""
        images = self._clients.direct("ec2", region=call.region).describe_images(Owners=["amazon"])["Images"]
        fitting = sorted(one["ImageId"] for one in images if one.get("Architecture", "x86_64") == "x86_64")
        if not fitting:
            raise ApiError("ParameterNotFound", f"{name}: the cloud has no machine image")
        return {
            "Name": name,
            "Type": "String",
            "Value": fitting[0],
            "Version": 1,
            "LastModifiedDate": PUBLISHED,
            "ARN": f"arn:aws:ssm:{call.region}::parameter{name}",
            "DataType": "aws:ec2:image",
        }
