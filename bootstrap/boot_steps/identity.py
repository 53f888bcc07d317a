"""Boot step: read the instance's identity."""

from __future__ import annotations

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context, identify
from bootstrap.errors import NoMetadataService, StepError


class Identity(Step):
    """Read the instance's id, type, zone, address and market from instance metadata."""

    name = "identity"

    def act(self, context: Context) -> None:
        """Read the identity unless `boot` has already read it."""
        if context.identity is not None:
            return
        try:
            identify(context)
        except NoMetadataService as error:
            raise StepError(
                str(error),
                remedy="run on an EC2 instance with instance metadata enabled, "
                "or set AWS_EC2_METADATA_SERVICE_ENDPOINT to the service's address",
            ) from error
