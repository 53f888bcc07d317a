"""Boot step: who is this machine."""

from __future__ import annotations

from bootstrap.errors import NoMetadataService, StepError
from bootstrap.plan import Context, Step


class Identity(Step):
    """Ask instance metadata for id, type, zone, address and market."""

    name = "identity"

    def act(self, context: Context) -> None:
        """Ask, unless boot has asked already to name its events."""
        if context.identity is not None:
            return
        try:
            context.identity = context.metadata.identity()
        except NoMetadataService as error:
            raise StepError(
                str(error),
                remedy="run on an EC2 instance with instance metadata enabled, "
                "or set AWS_EC2_METADATA_SERVICE_ENDPOINT to where it answers",
            ) from error
        context.events.set_instance(context.identity.instance_id)

    def verify(self, context: Context) -> None:
        """Nothing is left to check: identity() answers with every required value or raises."""
