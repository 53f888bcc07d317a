"""Exceptions of the training package: one tree, each class one way in which a run can end.

The command line maps the class to an outcome and an exit code; see :mod:`training.outcome`.
"""

from __future__ import annotations


class TrainingError(Exception):
    """Anything the trainer reports in words; the run failed."""


class ConfigurationError(TrainingError):
    """What the user asked for cannot work; the same command will fail again.

    Attributes:
        problems: every problem found, one sentence each (path, value, rule, remedy).
    """

    def __init__(self, problems: list[str]) -> None:
        assert problems, "a configuration error names at least one problem"
        self.problems = problems
        # The list, not a text, is the argument: errors are pickled on their way to other ranks.
        super().__init__(problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class DatasetError(ConfigurationError):
    """A dataset is missing, damaged, or not the one that the run needs."""


class TokenizeError(ConfigurationError):
    """The text or the settings given to ``tokenize`` cannot become a dataset."""


class NonFiniteLossError(TrainingError):
    """The loss or the gradients became NaN or infinite; no checkpoint was made of that state.

    Attributes:
        step: optimizer steps that would have been done after it: where it began.
    """

    def __init__(self, step: int, loss: float, gradient_norm: float, where: str = "") -> None:
        self.step, self.loss, self.gradient_norm = step, loss, gradient_norm
        super().__init__(step, loss, gradient_norm, where)

    def at(self, where: str) -> NonFiniteLossError:
        """The same with the part of the model in which it began."""
        return NonFiniteLossError(self.step, self.loss, self.gradient_norm, where)

    def __str__(self) -> str:
        _, loss, gradient_norm, where = self.args
        return (
            f"the loss or the gradient became NaN or infinite at step {self.step} (loss {loss}, gradient norm "
            f"{gradient_norm}){where and '; '}{where}; lower optimizer.learning_rate, use a longer warm-up, or another "
            "precision"
        )


class DivergedError(TrainingError):
    """The loss went wrong again and again, or ranks no longer hold the same parameters."""


class OutOfMemoryError(TrainingError):
    """A step needs more memory than there is."""


class PeerError(TrainingError):
    """Another rank failed; its own outcome file says why."""


class StoreError(TrainingError):
    """The checkpoint store refused or lost a request, after bounded retries."""


class AlreadyExistsError(StoreError):
    """A create-only write found its key taken."""


class NotFoundError(StoreError):
    """The store has no such object."""


class CorruptCheckpointError(StoreError):
    """A checkpoint's bytes are missing or do not match their hashes."""


class SaveCancelledError(StoreError):
    """A save was given up for a more urgent one, or because its deadline passed."""


class SupersededError(TrainingError):
    """A newer generation owns the checkpoint log; this writer may commit nothing more."""
