"""AWS's public SSM parameters for machine images.

A machine image parameter returns an image that exists in the cloud and has the same root device as the real image. moto
provides all other parameters.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami

from localcloud.account.account_file import ImageDescription
from localcloud.api import ApiError, Call, Clients, Handler, Service
from localcloud.iam.identity import ACCOUNT

# Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-public-parameters-ami.html and
# https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html (2026-11).
IMAGE = re.compile(r"^/aws/service/(ami-amazon-linux-latest|deeplearning/ami|canonical/ubuntu)/[\w./-]+$")
STANDARD_CHARACTERS = 4_096
PUBLISHED = datetime(2026, 11, 1, tzinfo=UTC)
UBUNTU_ROOT = "/dev/sda1"
AMAZON_OWNER = "898082745236"


class _PublicImage(Ami):
    """An image with a root volume of a given size. The root volumes of moto's images are 15 GiB in size."""

    gib = 75

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        """The root volume."""
        (root,) = super().block_device_mappings
        return [root | {"Ebs": root["Ebs"] | {"VolumeSize": self.gib}}]


def check_value(call: Call) -> None:
    """Check the length of a Standard-tier parameter's value.

    Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
    (2026-11).

    Raises:
        ApiError: ValidationException.
    """
    p = call.parameters
    if call.operation != "PutParameter" or p.get("Tier", "Standard") != "Standard":
        return
    if len(str(p["Value"])) > STANDARD_CHARACTERS:
        raise ApiError(
            "ValidationException",
            f"Standard tier parameters support a maximum parameter value of {STANDARD_CHARACTERS} characters. To "
            "create a larger parameter value, upgrade the parameter to use the advanced-parameter tier.",
        )


class PublicParameters(Service):
    """GetParameter and GetParameters (api.Service "ssm")."""

    name = "ssm"

    def __init__(self, clients: Clients, images: Sequence[ImageDescription] = ()) -> None:
        self._clients = clients
        self._described = {one.parameter: one for one in images}
        self._lock = threading.Lock()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {"GetParameter": self._get_one, "GetParameters": self._get_many}

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
            # AWS's ParameterNotFound has no message. Source: test_ssm in
            # https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation/resources.
            words = "" if detail["Code"] == "ParameterNotFound" else detail["Message"]
            raise ApiError(detail["Code"], words) from error
        return parameter

    def _image(self, call: Call, name: str) -> Mapping[str, Any]:
        """Return a parameter that contains a machine image's ID. The first call creates the image."""
        image_id = "ami-" + hashlib.sha256(name.encode()).hexdigest()[:17]
        described = self._described.get(name, self._usual(name))
        images = ec2_backends[ACCOUNT][call.region].amis
        with self._lock:
            if described.exists and image_id not in images:
                images[image_id] = self._created(call.region, image_id, described)
        return {
            "Name": name,
            "Type": "String",
            "Value": image_id,
            "Version": 1,
            "LastModifiedDate": PUBLISHED,
            "ARN": f"arn:aws:ssm:{call.region}::parameter{name}",
            "DataType": "aws:ec2:image",
        }

    def _usual(self, name: str) -> ImageDescription:
        ubuntu = "ubuntu" in name
        return ImageDescription(
            parameter=name,
            root_device=UBUNTU_ROOT if ubuntu else "/dev/xvda",
            gib=75 if "/deeplearning/" in name else 8,
            architecture="arm64" if "arm64" in name else "x86_64",
        )

    def _created(self, region: str, image_id: str, described: ImageDescription) -> Ami:
        image = _PublicImage(
            ec2_backends[ACCOUNT][region],
            image_id,
            name=described.name or described.parameter,
            owner_id=AMAZON_OWNER,
            owner_alias="amazon",
            public=True,
            virtualization_type="hvm",
            architecture=described.architecture,
            hypervisor="xen",
            root_device_type="ebs",
            root_device_name=described.root_device,
            region_name=f"{region}a",
            creation_date=PUBLISHED,
        )
        image.gib = described.gib
        return image
