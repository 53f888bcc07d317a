"""Boot step: check the training interpreter."""

from __future__ import annotations

import json
import logging
from functools import partial

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.errors import CommandError, NotReadyError, StepError
from bootstrap.gpus.health import driver_fault
from bootstrap.interpreter import find_interpreter

logger = logging.getLogger(__name__)

DRIVER_SECONDS = 120.0
# This step runs at the same time as `instance_checks`, which waits for the driver and reports missing GPUs.
GPU_SECONDS = 150.0
# Runs in the training interpreter. A real import proves that shared libraries load, and it leaves the files in the page
# cache for the trainer.
_PROBE = """
import sys
sys.path.pop(0)  # the working directory
import importlib, json
missing, versions = {}, {"python": sys.version.split()[0]}
for name in sys.argv[2:]:
    try:
        module = importlib.import_module(name)
        versions[name] = str(getattr(module, "__version__", "unknown"))
    except Exception as error:
        missing[name] = type(error).__name__ + ": " + str(error)
gpus = cuda = None
if int(sys.argv[1]) and "torch" in sys.modules:
    torch = sys.modules["torch"]
    gpus, cuda = torch.cuda.device_count(), torch.version.cuda
print(json.dumps({"missing": missing, "versions": versions, "gpus": gpus, "cuda": cuda}))
"""


class PythonEnv(Step):
    """Import the packages in the training interpreter once, which also fills the page cache."""

    name = "python_env"
    after = ("wheelhouse",)

    def verify(self, context: Context) -> None:
        """Import every package in the node document. torch must detect all GPUs, once the driver is loaded."""
        context.wait_until_ready(partial(_verify, context), limit_seconds=GPU_SECONDS)


def _verify(context: Context) -> None:
    """Run the import check.

    Raises:
        NotReadyError: torch does not detect all GPUs.
        StepError: A package cannot be imported, or torch cannot use the driver.
    """
    interpreter = find_interpreter(context)
    packages = list(dict.fromkeys(("torch", *context.node.python.packages)))
    command = [interpreter, "-c", _PROBE, str(context.node.gpus), *packages]
    try:
        answer = context.system.run(command, timeout_seconds=context.node.supervise.boot_timeout_seconds)
        found = json.loads(answer.splitlines()[-1])
    except CommandError as error:
        raise StepError.from_command(
            error, message=f"{interpreter}: cannot run the import check", remedy="install them in the image"
        ) from error
    except (ValueError, IndexError) as error:
        raise StepError(
            f"{interpreter}: the output of the import check is not JSON",
            remedy="set node.python.interpreter to a Python interpreter",
            command=command,
            output_tail=answer,
        ) from error
    logger.info("%s: %s", interpreter, found["versions"])
    if found["missing"]:
        raise StepError(
            f"{interpreter}: " + "; ".join(f"{name}: {why}" for name, why in found["missing"].items()),
            remedy="add them to the wheelhouse (`python -m stacks bundle FILE`) or to the image, or remove them "
            "from node.python.packages",
            command=command,
        )
    if found["gpus"] is not None and found["gpus"] != context.node.gpus:
        _check_driver(context, found["cuda"])
        raise NotReadyError(
            f"torch found {found['gpus']} GPUs, expected {context.node.gpus}",
            remedy="install torch for a CUDA version that the image's driver supports",
            command=command,
        )


def _check_driver(context: Context, cuda: str | None) -> None:
    """Check that the driver supports torch's CUDA version. With an older driver, torch reports zero GPUs instead of an
    error.

    Raises:
        StepError: The driver does not support the version, or torch is built without CUDA.
    """
    if cuda is None:
        raise StepError(
            "torch is built without CUDA, but this node has GPUs",
            remedy="install torch with CUDA in the image, or choose an instance type without GPUs",
        )
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        drivers = context.system.run(command, timeout_seconds=DRIVER_SECONDS).split()
    except CommandError:  # `instance_checks` reports it
        return
    fault = driver_fault(drivers[0], cuda) if drivers else None
    if fault is not None:
        raise StepError(fault.message, remedy=fault.remedy)
