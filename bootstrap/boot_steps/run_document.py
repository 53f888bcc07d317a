"""Boot step: read the run document. Supervisors read it together with the desired state of the deployment."""

from __future__ import annotations

from bootstrap.aws import AWS_ERRORS, Patience
from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context, PodSettings
from bootstrap.documents import RunDocument
from bootstrap.documents.desired_state import RUNNING, DesiredState, desired_parameter
from bootstrap.errors import StepError


class FetchRunDocument(Step):
    """Read the run document from Parameter Store, or from a mounted ConfigMap in a Kubernetes pod."""

    name = "run_document"

    def act(self, context: Context) -> None:
        """Read and decode the document."""
        context.run, _ = read_parameters(context, patience="high")

    def verify(self, context: Context) -> None:
        """Check that the document belongs to this deployment."""
        assert context.run is not None
        if context.run.deployment != context.node.deployment:
            raise StepError(
                f"{context.node.run_parameter}: found deployment {context.run.deployment}, "
                f"expected {context.node.deployment}",
                remedy="deploy the training stack again",
            )


def read_parameters(context: Context, patience: Patience = "normal") -> tuple[RunDocument, DesiredState]:
    """Return the current run document and the desired state from Parameter Store.

    A Kubernetes pod has no desired state: a stopped run is a suspended job, whose pods the kubelet terminates. If the
    parameter with the desired state does not exist, the state is `running`: GetParameters does not fail for missing
    parameters. Source (2026-11): https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetParameters.html

    Raises:
        StepError: The run document cannot be read.
        DocumentError: A document is invalid.
    """
    if context.pod is not None:
        return _mounted_document(context, context.pod), RUNNING
    name, desired_name = context.node.run_parameter, desired_parameter(context.node.deployment)
    remedy = (
        f"check that the parameter exists, that the node role allows ssm:GetParameters on it and on {desired_name}, "
        "and that the VPC has an endpoint for ssm"
    )
    try:
        answer = context.aws.client("ssm", patience=patience).get_parameters(Names=[name, desired_name])
    except AWS_ERRORS as error:
        raise StepError(f"{name}: cannot read from Parameter Store ({error})", remedy=remedy) from error
    texts = {each["Name"]: each["Value"] for each in answer["Parameters"]}
    if name not in texts:
        raise StepError(f"{name}: the parameter does not exist", remedy=remedy)
    desired = DesiredState.from_text(texts[desired_name], document=desired_name) if desired_name in texts else RUNNING
    return RunDocument.from_text(texts[name], document=name), desired


def _mounted_document(context: Context, pod: PodSettings) -> RunDocument:
    text = context.system.read(pod.run_document)
    if text is None:
        raise StepError(f"{pod.run_document}: not found", remedy="apply the ConfigMap from the manifests again")
    return RunDocument.from_text(text, document=str(pod.run_document))
