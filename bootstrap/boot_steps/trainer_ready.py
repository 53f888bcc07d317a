"""Boot step: check that the training interpreter can import the trainer."""

from __future__ import annotations

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.errors import CommandError, StepError
from bootstrap.interpreter import find_interpreter

# `python -c` puts the working directory first on sys.path, but that directory is not part of the bundle.
_PROBE = """
import sys
sys.path.pop(0)
import importlib.util, training
assert importlib.util.find_spec("training.__main__"), "no training.__main__"
"""


class TrainerReady(Step):
    """Import the trainer's package from the code bundle with the training interpreter."""

    name = "trainer_ready"
    after = ("instance_checks", "python_env", "code", "staging")

    def verify(self, context: Context) -> None:
        """Import the package."""
        assert context.run is not None
        code = context.layout.code(context.run.code.sha256)
        try:
            context.system.run(
                [find_interpreter(context), "-c", _PROBE], timeout_seconds=120, environment={"PYTHONPATH": str(code)}
            )
        except CommandError as error:
            raise StepError.from_command(
                error,
                message="cannot import the `training` package from the code bundle",
                remedy="see the output; correct the code or the image, and deploy again",
            ) from error
