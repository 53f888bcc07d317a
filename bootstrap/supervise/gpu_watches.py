"""Watches the node's GPUs for fatal faults during training, and reports their utilization for CloudWatch metrics.

After a fatal fault, the trainers can no longer save, and the instance must be replaced. The driver writes an Xid to the
kernel log. Some GPUs disappear without an Xid, and only nvidia-smi reports them.
Sources (2026-11): https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (79 and similar),
https://docs.nvidia.com/deploy/nvidia-smi/index.html.
"""

from __future__ import annotations

import re

from bootstrap.context import Context
from bootstrap.errors import BootstrapError, CommandError
from bootstrap.events.schema import GpuUse, InstanceFault
from bootstrap.gpus.health import REPLACE, Fault, xid_faults
from bootstrap.supervise.monitors import Board

USE_INTERVAL_SECONDS = 30.0
FAULT_INTERVAL_SECONDS = 10.0
USE_QUERY_SECONDS = 20.0
FAULT_QUERY_SECONDS = 30.0
# Source: `nvidia-smi --help-query-gpu`; with `nounits`, utilization is in percent and memory is in MiB.
_QUERY = ("utilization.gpu", "memory.used", "memory.total")
_LOST = re.compile(r"Unable to determine the device handle for.*|.*GPU is lost.*", re.IGNORECASE)


class GpuUseWatch:
    """Queries the driver and emits `gpu_use`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def check(self) -> None:
        """Emit the mean and minimum GPU utilization, and the memory use.

        Raises:
            BootstrapError: The query failed, or its output is not numeric.
        """
        command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
        output = self._context.system.run(command, timeout_seconds=USE_QUERY_SECONDS)
        try:
            rows = [[float(field) for field in line.split(",")] for line in output.splitlines() if line.strip()]
            use, used_mib, total_mib = zip(*rows, strict=True)
        except ValueError as error:  # "[N/A]" while a GPU is being reset
            raise BootstrapError(f"nvidia-smi: the output is not numeric: {output.strip()[:200]!r}") from error
        self._context.events.emit(
            GpuUse(
                gpus=len(rows),
                gpu_utilization_percent=round(sum(use) / len(use), 1),
                idlest_gpu_utilization_percent=min(use),
                gpu_memory_used_mib=sum(used_mib),
                gpu_memory_total_mib=sum(total_mib),
            )
        )


class GpuFaultWatch:
    """Watches for a fatal GPU fault, after which the node leaves."""

    def __init__(self, context: Context, board: Board) -> None:
        self._context = context
        self._board = board

    def check(self) -> None:
        """Read the kernel log and query the driver. Emit the first fatal fault and wake the main loop.

        Raises:
            BootstrapError: The kernel log of an instance cannot be read.
        """
        if self._board.gpu_fault is not None:
            return
        fault = self._fault()
        if fault is None:
            return
        self._context.events.emit(InstanceFault(fault.message, "terminate", fault.remedy))
        self._board.gpu_fault = fault.message
        self._board.wake.set()

    def _fault(self) -> Fault | None:
        system = self._context.system
        if self._context.pod is None:  # a pod cannot read the kernel log
            faults = xid_faults(system.run(["dmesg"], timeout_seconds=FAULT_QUERY_SECONDS))
            if faults:
                return faults[0]
        try:
            output = system.run(["nvidia-smi", "--list-gpus"], timeout_seconds=FAULT_QUERY_SECONDS)
        except CommandError as error:
            output = error.output_tail
        lost = _LOST.search(output)
        return Fault(f"a GPU is lost: {lost[0].strip()}", "terminate", REPLACE) if lost is not None else None
