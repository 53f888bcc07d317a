"""The ledger of completed steps: two ranks with equal digests have computed the same losses and gradient norms."""

from __future__ import annotations

import hashlib
import struct


class StepLedger:
    """Records each step whose gate this rank has read.

    Attributes:
        step: newest completed step.
        digest: running digest of the loss and gradient norm of every step up to this one.
        previous: the digest before that step.
    """

    def __init__(self, step: int, origin: str) -> None:
        self.step = step
        self.digest = self.previous = hashlib.blake2b(f"{origin}/{step}".encode(), digest_size=16).hexdigest()

    def note(self, step: int, loss: float, gradient_norm: float) -> None:
        """Add a completed step."""
        self.previous = self.digest
        numbers = struct.pack("<qdd", step, loss, gradient_norm)
        self.digest = hashlib.blake2b(self.digest.encode() + numbers, digest_size=16).hexdigest()
        self.step = step

    def take_over(self, step: int, digest: str) -> None:
        """Continue from another rank's state."""
        self.step, self.digest, self.previous = step, digest, digest
