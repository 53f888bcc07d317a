"""Boot step: is there a Python that can train."""

from __future__ import annotations

import json
import logging

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.gpu_health import driver_fault
from bootstrap.steps.interpreter import find_interpreter

logger = logging.getLogger(__name__)

DRIVER_SECONDS = 120.0
# Runs in the training interpreter. Importing for real, not only looking, proves that shared libraries load, and leaves
# the files in the page cache for the trainer.
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
    """Find the training interpreter and import its packages once, which also warms the page cache."""

    name = "python_env"
    after = ("wheelhouse",)

    def act(self, context: Context) -> None:
        """Nothing to make: the image brings the interpreter, and the wheelhouse what it lacks."""

    def verify(self, context: Context) -> None:
        """Import every package of the node document in the interpreter; torch must see the GPUs."""
        interpreter = find_interpreter(context)
        packages = list(dict.fromkeys(("torch", *context.node.python.packages)))
        command = [interpreter, "-c", _PROBE, str(context.node.gpus), *packages]
        try:
            answer = context.system.run(command, timeout_seconds=context.node.supervise.boot_timeout_seconds)
            found = json.loads(answer.splitlines()[-1])
        except CommandError as error:
            raise StepError.from_command(
                error, message=f"{interpreter}: cannot import the packages", remedy="install them in the image"
            ) from error
        except (ValueError, IndexError) as error:
            raise StepError(
                f"{interpreter}: answered with something else than JSON",
                remedy="give a Python 3 interpreter as node.python.interpreter",
                command=command,
                output_tail=answer,
            ) from error
        logger.info("%s: %s", interpreter, found["versions"])
        if found["missing"]:
            raise StepError(
                f"{interpreter}: " + "; ".join(f"{name}: {why}" for name, why in found["missing"].items()),
                remedy="ship them (`python -m stacks bundle FILE`), use an image that has them, or correct node.python",
                command=command,
            )
        if found["gpus"] is not None and found["gpus"] != context.node.gpus:
            _check_driver(context, found["cuda"])
            raise StepError(
                f"torch sees {found['gpus']} GPUs, the node document says {context.node.gpus}",
                remedy="install a torch built for CUDA that fits the driver of the image",
                command=command,
            )


def _check_driver(context: Context, cuda: str | None) -> None:
    """Say in one line that driver and torch do not fit, of which torch only shows that it sees no GPU.

    Raises:
        StepError: They do not.
    """
    if cuda is None:
        raise StepError(
            "torch was built without CUDA, and this node has GPUs",
            remedy="install a torch built for CUDA in the image, or choose a type without GPUs",
        )
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        drivers = context.system.run(command, timeout_seconds=DRIVER_SECONDS).split()
    except CommandError:  # `instance_checks` says it
        return
    fault = driver_fault(drivers[0], cuda) if drivers else None
    if fault is not None:
        raise StepError(fault.message, remedy=fault.remedy)
