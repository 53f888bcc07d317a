"""Boot step: can the interpreter start the trainer from the code bundle."""

from __future__ import annotations

from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.interpreter import find_interpreter

# The working directory comes first on the path of `python -c`, and has nothing to do with the bundle.
_PROBE = """
import sys
sys.path.pop(0)
import importlib.util, training
assert importlib.util.find_spec("training.__main__"), "no training.__main__"
"""


class TrainerReady(Step):
    """Import the trainer's package from the code bundle in the training interpreter."""

    name = "trainer_ready"
    after = ("instance_checks", "python_env", "code", "staging")

    def act(self, context: Context) -> None:
        """Nothing to make: the steps before brought it."""

    def verify(self, context: Context) -> None:
        """Import it."""
        assert context.run is not None
        code = context.layout.code(context.run.code.sha256)
        try:
            context.system.run(
                [find_interpreter(context), "-c", _PROBE], timeout_seconds=120, environment={"PYTHONPATH": str(code)}
            )
        except CommandError as error:
            raise StepError.from_command(
                error,
                message="the `training` package of the code bundle cannot be imported",
                remedy="see the last lines of its output; correct the code or the image, and deploy again",
            ) from error
