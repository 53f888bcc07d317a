"""Checks that the service-linked roles required by the fleet APIs exist. As on AWS, users must create them.

Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-prerequisites.html and spot-fleet-prerequisites.html
(2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Clients

_SERVICES: Mapping[str, str] = {
    "AWSServiceRoleForEC2Fleet": "EC2 Fleet",
    "AWSServiceRoleForEC2SpotFleet": "EC2 Spot Fleet",
    "AWSServiceRoleForEC2Spot": "EC2 Spot Instances",
}


def require_linked_roles(clients: Clients, *names: str) -> None:
    """Check that the roles exist.

    Raises:
        ApiError: AuthFailure.ServiceLinkedRoleCreationNotPermitted for the first missing role.
    """
    for name in names:
        try:
            clients.direct("iam").get_role(RoleName=name)
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchEntity":
                raise
            raise ApiError(
                "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
                "The provided credentials do not have permission to create the service-linked role for "
                f"{_SERVICES[name]}.",
                403,
            ) from error
