"""Boot step: what is to be trained."""

from __future__ import annotations

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import RunDocument
from bootstrap.errors import StepError
from bootstrap.plan import Context, Step


class FetchRunDocument(Step):
    """Read the run document from Parameter Store."""

    name = "run_document"

    def act(self, context: Context) -> None:
        """Read and decode it."""
        context.run = read_run_document(context)

    def verify(self, context: Context) -> None:
        """The document is for this deployment."""
        assert context.run is not None
        if context.run.deployment != context.node.deployment:
            raise StepError(
                f"{context.node.run_parameter}: is for deployment {context.run.deployment}, "
                f"this node is of {context.node.deployment}",
                remedy="deploy the training stack again",
            )


def read_run_document(context: Context) -> RunDocument:
    """Return the run document as it is in Parameter Store now.

    Raises:
        StepError: It cannot be read.
        DocumentError: It is not sound.
    """
    name = context.node.run_parameter
    try:
        answer = context.aws.client("ssm").get_parameter(Name=name)
    except AWS_ERRORS as error:
        raise StepError(
            f"{name}: cannot be read from Parameter Store ({error})",
            remedy="check that the parameter exists, that the node's role may ssm:GetParameter it, "
            "and that the VPC has an endpoint for ssm",
        ) from error
    return RunDocument.from_text(answer["Parameter"]["Value"], document=name)
