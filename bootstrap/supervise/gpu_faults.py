"""A GPU that is lost while the node trains: its trainers cannot save any more, and the machine is of no use.

The driver writes an Xid to the kernel's log; some GPUs vanish without one, and nvidia-smi names them.
Sources (2026-11): https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (79 and its like),
https://docs.nvidia.com/deploy/nvidia-smi/index.html.
"""

from __future__ import annotations

import re

from bootstrap.errors import CommandError
from bootstrap.plan import Context
from bootstrap.steps.gpu_health import REPLACE, Fault, xid_faults
from bootstrap.supervise.monitors import Board

INTERVAL_SECONDS = 10.0
PROGRAM_SECONDS = 30.0
_LOST = re.compile(r"Unable to determine the device handle for.*|.*GPU is lost.*", re.IGNORECASE)


class GpuFaultWatch:
    """Sees a fatal fault of a GPU; the node leaves then, and another machine takes its place."""

    def __init__(self, context: Context, board: Board) -> None:
        self._context = context
        self._board = board

    def look(self) -> None:
        """Read the kernel's log and ask the driver; the first fatal fault is an event and wakes the main loop.

        Raises:
            BootstrapError: Neither can be asked.
        """
        if self._board.gpu_fault is not None:
            return
        fault = self._fault()
        if fault is None:
            return
        self._context.events.emit("instance_fault", message=fault.message, action="give_back", remedy=fault.remedy)
        self._board.gpu_fault = fault.message
        self._board.wake.set()

    def _fault(self) -> Fault | None:
        system = self._context.system
        faults = xid_faults(system.run(["dmesg"], timeout_seconds=PROGRAM_SECONDS))
        if faults:
            return faults[0]
        try:
            said = system.run(["nvidia-smi", "--list-gpus"], timeout_seconds=PROGRAM_SECONDS)
        except CommandError as error:
            said = error.output_tail
        lost = _LOST.search(said)
        return Fault(f"gpus: one is lost: {lost[0].strip()}", "give_back", REPLACE) if lost is not None else None
