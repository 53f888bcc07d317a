"""How busy the node's GPUs are, as the driver says: an event every half minute, from which CloudWatch makes metrics."""

from __future__ import annotations

from bootstrap.errors import BootstrapError
from bootstrap.plan import Context

INTERVAL_SECONDS = 30.0
QUERY_TIMEOUT_SECONDS = 20.0
# Source: `nvidia-smi --help-query-gpu`; with `nounits` utilization is in percent and memory in MiB.
QUERY = ("utilization.gpu", "memory.used", "memory.total")


class GpuUseWatch:
    """Asks the driver and emits `gpu_use`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def look(self) -> None:
        """Emit the mean and the lowest utilisation of the GPUs, and their memory.

        Raises:
            BootstrapError: The driver does not answer, or not in numbers.
        """
        command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
        listing = self._context.system.run(command, timeout_seconds=QUERY_TIMEOUT_SECONDS)
        try:
            rows = [[float(field) for field in line.split(",")] for line in listing.splitlines() if line.strip()]
            use, used_mib, total_mib = zip(*rows, strict=True)
        except ValueError as error:  # "[N/A]" while a GPU is being reset
            raise BootstrapError(f"nvidia-smi: not in numbers: {listing.strip()[:200]!r}") from error
        self._context.events.emit(
            "gpu_use",
            gpus=len(rows),
            gpu_utilization_percent=round(sum(use) / len(use), 1),
            idlest_gpu_utilization_percent=min(use),
            gpu_memory_used_mib=sum(used_mib),
            gpu_memory_total_mib=sum(total_mib),
        )
