"""Exceptions raised by the training package. Each class represents one cause of failure.

The `train` command maps the class to an outcome and an exit code; see :mod:`training.process.outcome`.
"""

from __future__ import annotations


class TrainingError(Exception):
    """A failure with a message for the user."""


class ConfigurationError(TrainingError):
    """The request is invalid; retrying the same command would fail again.

    Attributes:
        problems: all problems found, one message each (path, value, rule, remedy).
    """

    def __init__(self, problems: list[str]) -> None:
        assert problems, "a configuration error has at least one problem"
        self.problems = problems
        # Pass the list instead of a string, because errors are sent to other ranks with their arguments.
        super().__init__(problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class DatasetError(ConfigurationError):
    """A dataset is missing, damaged, or different from the dataset that the run requires."""


class TokenizeError(ConfigurationError):
    """``tokenize`` cannot create a dataset from its input or settings."""


class NonFiniteLossError(TrainingError):
    """The loss or the gradients became NaN or infinite. The affected state was not saved.

    Attributes:
        step: first non-finite step, counted from 1.
    """

    def __init__(self, step: int, loss: float, gradient_norm: float, where: str = "") -> None:
        self.step, self.loss, self.gradient_norm = step, loss, gradient_norm
        super().__init__(step, loss, gradient_norm, where)

    def at(self, where: str) -> NonFiniteLossError:
        """Return a copy of this error with the failing part of the model in its message."""
        return NonFiniteLossError(self.step, self.loss, self.gradient_norm, where)

    def __str__(self) -> str:
        _, loss, gradient_norm, where = self.args
        return (
            f"the loss or the gradient became NaN or infinite at step {self.step} (loss {loss}, gradient norm "
            f"{gradient_norm}){where and '; '}{where}; lower optimizer.learning_rate, use a longer warm-up, or change "
            "the precision"
        )


class DivergedError(TrainingError):
    """The loss diverged repeatedly, or parameters differ between ranks."""


class GateError(TrainingError):
    """A collective of an optimizer step was aborted, so the step has not changed the weights."""


class NotReformedError(TrainingError):
    """The gang cannot be re-formed from the state in memory; the next generation starts from the checkpoint."""


class OutOfMemoryError(TrainingError):
    """A step needs more memory than is available."""


class PeerError(TrainingError):
    """Another rank failed; its outcome file contains the reason."""


class StoreError(TrainingError):
    """A request to the checkpoint store failed after all retries."""


class AlreadyExistsError(StoreError):
    """A create-only write failed because the key exists."""


class NotFoundError(StoreError):
    """The object does not exist in the store."""


class CorruptCheckpointError(StoreError):
    """Checkpoint data is missing or does not match its hash."""


class SaveCancelledError(StoreError):
    """A save was cancelled in favor of a more urgent one, or missed its deadline."""


class SupersededError(TrainingError):
    """A newer generation owns the checkpoint log; this writer can no longer commit."""
