"""Boot step: is there a Python that can train."""

from __future__ import annotations

import json
import logging

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step

logger = logging.getLogger(__name__)

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
gpus = None
if int(sys.argv[1]) and "torch" in sys.modules:
    gpus = sys.modules["torch"].cuda.device_count()
print(json.dumps({"missing": missing, "versions": versions, "gpus": gpus}))
"""


class PythonEnv(Step):
    """Find the training interpreter and import its packages once, which also warms the page cache."""

    name = "python_env"

    def act(self, context: Context) -> None:
        """Nothing to make: the image brings the interpreter."""

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
                remedy="use an image whose interpreter has these packages, or correct node.python",
                command=command,
            )
        if found["gpus"] is not None and found["gpus"] != context.node.gpus:
            raise StepError(
                f"torch sees {found['gpus']} GPUs, the node document says {context.node.gpus}",
                remedy="install a torch built for CUDA that fits the driver of the image",
                command=command,
            )


def find_interpreter(context: Context) -> str:
    """Return the path of the interpreter that trains.

    Raises:
        StepError: There is none.
    """
    interpreter = context.system.find_program(context.node.python.interpreter)
    if interpreter is None:
        raise StepError(
            f"python.interpreter: {context.node.python.interpreter}: is not on PATH, or cannot be executed",
            remedy="give the name or absolute path of an interpreter that the image has",
        )
    return interpreter
