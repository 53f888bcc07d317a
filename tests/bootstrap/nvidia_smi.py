"""Output of `nvidia-smi -q -x`: the elements that the checks read, as drivers 535 to 580 write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

HEALTHY = """<gpu id="00000000:{bus}:00.0">
  <product_name>NVIDIA H100 80GB HBM3</product_name>
  <gpu_recovery_action>None</gpu_recovery_action>
  <fb_memory_usage><total>81559 MiB</total><used>1 MiB</used></fb_memory_usage>
  <ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
  <ecc_errors>
    <volatile>
      <sram_correctable>0</sram_correctable>
      <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
      <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
      <dram_correctable>12</dram_correctable>
      <dram_uncorrectable>0</dram_uncorrectable>
    </volatile>
    <aggregate>
      <dram_uncorrectable>3</dram_uncorrectable>
      <sram_threshold_exceeded>No</sram_threshold_exceeded>
    </aggregate>
  </ecc_errors>
  <retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
  <remapped_rows>
    <remapped_row_unc>1</remapped_row_unc>
    <remapped_row_pending>No</remapped_row_pending>
    <remapped_row_failure>No</remapped_row_failure>
  </remapped_rows>
  <max_clocks>
    <graphics_clock>1980 MHz</graphics_clock><sm_clock>1980 MHz</sm_clock><mem_clock>2619 MHz</mem_clock>
  </max_clocks>
  <clocks_event_reasons>
    <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
    <clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
    <clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
  </clocks_event_reasons>
</gpu>
"""


def report(count: int, changes: Sequence[Mapping[str, str]] = ()) -> str:
    """Return the report of `count` healthy GPUs; `changes[n]` replaces texts in the report of GPU n."""
    gpus = []
    for number in range(count):
        gpu = HEALTHY.replace("{bus}", f"{0x1A + number:02X}")
        for old, new in (changes[number] if number < len(changes) else {}).items():
            assert old in gpu, old
            gpu = gpu.replace(old, new)
        gpus.append(gpu)
    head = f"<driver_version>570.133.20</driver_version><attached_gpus>{count}</attached_gpus>"
    return f'<?xml version="1.0" ?>\n<nvidia_smi_log>{head}{"".join(gpus)}</nvidia_smi_log>\n'
