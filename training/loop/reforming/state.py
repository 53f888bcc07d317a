"""The run's state while the gang changes in place: what a rank claims, gives to the others, and takes from them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Protocol

import torch

from training.checkpoint.manifest import ValidationRecord
from training.errors import GateError, NotReformedError
from training.loop.early_stopping import Patience
from training.loop.loss_watch import LossWatch
from training.loop.run import Run
from training.loop.step_result import StepReport
from training.models.user_model import MeanLoss
from training.process.reform.claims import Claim, Verdict
from training.process.reform.state_transfer import TensorForm, exchange


class LoopState(Protocol):
    """The part of the training loop that a change carries to the other ranks."""

    @property
    def committed_step(self) -> int | None:
        """Step of the newest checkpoint known to be committed."""

    def carried(self) -> dict[str, Any]:
        """Return the state."""

    def restore(self, carried: dict[str, Any]) -> None:
        """Continue from another rank's state."""


class StateInMemory:
    """A rank's training state during a change.

    Args:
        run: the run.
        is_whole: False for a rank that joins.
    """

    def __init__(self, run: Run, *, is_whole: bool) -> None:
        self._run = run
        self._is_whole = is_whole
        self._reports: list[StepReport] = []

    def recover(self) -> None:
        """Go back to the last completed step, and keep the reports that the loop has not read. Without collectives.

        Raises:
            NotReformedError: The last step's result cannot be read.
        """
        run = self._run
        if run.gang.device.type == "cuda":
            torch.cuda.synchronize()
        try:
            self._reports = run.flags.recover()
        except (GateError, RuntimeError) as error:
            raise NotReformedError(f"the last step's result cannot be read: {error}") from error
        assert run.ledger is not None, "a run without a ledger is not formed again"
        behind = run.state.step - run.ledger.step
        # A step that was aborted has not changed a weight, although the host has counted it.
        run.state.step = run.ledger.step
        run.state.position -= behind * run.config.global_batch_size
        if run.buffers is not None:
            run.buffers.restore(run.state.step)
        self._is_whole &= not run.is_updating

    def give_up(self) -> None:
        """Claim no state from now on: the others have continued without this rank."""
        self._is_whole = False

    def claim(self) -> Claim:
        """Return this rank's claim."""
        run = self._run
        assert run.ledger is not None
        fits = not run.config.compile or self._sizes() <= run.compiled_sizes
        if not self._is_whole:
            return Claim(None, "", "", is_whole=False, fits=fits)
        return Claim(run.state.step, run.ledger.digest, run.ledger.previous, is_whole=True, fits=fits)

    def _sizes(self) -> set[int]:
        """Return the sizes of this rank's micro-batches."""
        run = self._run
        share = len(run.gang.share_of(run.config.global_batch_size))
        size = min(run.micro_batch_size, share)
        return {size, share % size} - {0}

    def take(self, verdict: Verdict, loop: LoopState) -> int:
        """Give the source's tensors to the receivers, and its host state to all ranks; return the bytes moved."""
        run, source = self._run, verdict.sources[0]
        gang, state = run.gang, run.state
        carried = gang.ask(source, lambda: self._carried(loop))
        is_receiver = gang.rank in verdict.receivers
        moved = 0
        if verdict.receivers:
            forms = gang.ask(source, self._forms)
            if is_receiver:
                self._is_whole = False
                records = {name: TensorForm(*form) for name, form in forms["tensors"].items()}
                tensors = state.targets(records, forms["optimizer"], forms["extra_states"])
            else:
                tensors = state.tensors()
            moved = exchange(verdict, gang.rank, tensors, gang.device, gang.wait_for_message)
            if is_receiver:
                state.set_extra_states(forms["extra_states"])
        if gang.world_size > 1:
            buffers = state.capture().buffers
            self._is_whole &= not buffers or gang.rank == source  # until all of them have arrived
            for name in sorted(buffers):
                gang.broadcast_(buffers[name], source)
        self._restore(carried, loop)
        self._is_whole, run.is_updating = True, False
        return moved

    def _forms(self) -> dict[str, Any]:
        captured = self._run.state.capture()
        tensors = captured.shared | captured.buffers
        return {
            "tensors": {
                name: (str(each.dtype).removeprefix("torch."), list(each.shape)) for name, each in tensors.items()
            },
            "optimizer": captured.optimizer,
            "extra_states": captured.extra_states,
        }

    def _carried(self, loop: LoopState) -> dict[str, Any]:
        """Return the host's state. JSON carries its numbers exactly."""
        run = self._run
        assert run.ledger is not None
        return {
            "step": run.state.step,
            "position": run.state.position,
            "digest": run.ledger.digest,
            "watch": run.watch.state(),
            "patience": run.patience.state(),
            "validation": run.validation,
            "reports": [asdict(report) for report in self._reports],
            "skips": run.flags.consecutive_skips,
            "micro_batch_size": run.micro_batch_size,
            **loop.carried(),
        }

    def _restore(self, carried: dict[str, Any], loop: LoopState) -> None:
        run, config = self._run, self._run.config
        assert run.ledger is not None
        run.state.step, run.state.position = carried["step"], carried["position"]
        run.ledger.take_over(carried["step"], carried["digest"])
        run.watch = LossWatch(config.recovery, carried["watch"])
        run.patience = Patience(config.early_stopping, carried["patience"])
        validation = carried["validation"]
        assert validation is None or isinstance(validation, ValidationRecord)
        run.validation = validation
        self._reports = [StepReport(**report) for report in carried["reports"]]
        run.flags.restart(self._reports, carried["skips"])
        share = len(run.gang.share_of(config.global_batch_size))
        wanted = carried["micro_batch_size"] if config.micro_batch_size == "auto" else config.micro_batch_size
        run.micro_batch_size = min(wanted, share)
        loop.restore(carried)

    def prime(self) -> None:
        """Wrap the model for the new gang, and prime DDP as at a start."""
        run = self._run
        # The gradients of an aborted step, or of an aborted priming, would be added to those of the next step.
        run.state.optimizer.zero_grad()
        run.replica.replicate(is_equal=True)
        if run.gang.world_size > 1:
            batch = run.train_batches.example(run.micro_batch_size)
            used = run.replica.prime(run.state.model, batch, run.precision, lambda: None)
            if isinstance(run.uncompiled, MeanLoss):
                run.uncompiled.used = used
        run.compiled_sizes |= self._sizes()
