"""Model FLOP utilisation: what of the hardware's dense peak goes into the model's own arithmetic."""

from __future__ import annotations

from torch import nn

from training.config import ModelShape
from training.precision import Format

PEAK_TERAFLOPS: dict[str, dict[Format, float]] = {
    "B300": {"fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0},
    "B200": {"fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0},
    "H200": {"fp32": 67.0, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "H100 NVL": {"fp32": 60.0, "tf32": 417.5, "bf16": 835.0, "fp16": 835.0},
    "H100 PCIe": {"fp32": 51.2, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0},
    "H100": {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "A100": {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    "A10G": {"fp32": 35.0, "tf32": 35.0, "bf16": 70.0, "fp16": 70.0},
    "L40S": {"fp32": 91.6, "tf32": 183.0, "bf16": 362.05, "fp16": 362.05},
    "L4": {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0},
    "T4": {"fp32": 8.1, "fp16": 65.0},
    "V100": {"fp32": 15.7, "fp16": 125.0},
}
"""Dense (not sparse) tera floating-point operations a second, by a part of the name that the driver gives the GPU; the
first that fits counts. From NVIDIA's datasheets, read 2026-11: B200 and B300 https://www.nvidia.com/en-us/data-center/hgx/
(an eighth of a board of eight, its figures with sparsity halved), H100 and H200 https://www.nvidia.com/en-us/data-center/h200/
and https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet (its figures with sparsity halved),
A100 https://www.nvidia.com/en-us/data-center/a100/, L4 and L40S https://www.nvidia.com/en-us/data-center/l4/ (halved),
T4 https://www.nvidia.com/en-us/data-center/tesla-t4/, V100 https://www.nvidia.com/en-us/data-center/v100/;
A10G https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf."""


def multiplying_parameters(model: nn.Module) -> int:
    """Number of parameters that multiply an activation: tied ones once, embeddings that are only looked up not."""
    owners = [module for module in model.modules() if not isinstance(module, nn.Embedding)]
    found = {parameter for module in owners for parameter in module.parameters(recurse=False)}
    return sum(parameter.numel() for parameter in found)


def training_flops_per_token(parameters: int, shape: ModelShape) -> float:
    """Floating-point operations of forward and backward for one token: 6 for each parameter, and the attention's.

    Chowdhery et al. 2022, appendix B (https://arxiv.org/abs/2204.02311): recomputation does not count.

    Args:
        parameters: that multiply an activation.
        shape: of the model.
    """
    return 6.0 * parameters + 12.0 * shape.layers * shape.embedding * shape.context


def peak_flops_per_second(device_name: str, arithmetic: Format) -> float | None:
    """Dense peak of a GPU; None for a device or an arithmetic that the table does not have."""
    for part, peaks in PEAK_TERAFLOPS.items():
        if part in device_name:
            peak = peaks.get(arithmetic)
            return None if peak is None else peak * 1e12
    return None
