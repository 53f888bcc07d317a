"""Loads only a checkpoint's weights, without its optimizer, scaler, RNG states or data position.

    load_weights("s3://bucket/runs/one#paper", model)    # the run's tag `paper`; without #, the newest checkpoint

Only the chunks with the model's tensors are read and verified, several at a time. A process group is not required.
Loading does not write to the store, so it does not affect a run that is training there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.checkpoint.layout import bytes_of, dtype_of
from training.checkpoint.manifest import PartRecord, Subject, TensorRecord
from training.checkpoint.selection import Selected, select
from training.checkpoint.state.model import model_targets, model_tensors
from training.checkpoint.store import read_tensors
from training.errors import ConfigurationError
from training.process.distributed import Gang

MODEL_PREFIX = "model/"


def load_weights(address: str, model: nn.Module, subject: Subject | None = None) -> Selected:
    """Load the weights of the checkpoint at an address. See load_selected_weights.

    Args:
        address: address in the form ``URL`` or ``URL#CHECKPOINT``, as for ``python -m training checkpoint``.
        model: model that receives the weights.
        subject: tokenizer and dataset to compare with the checkpoint's; None: do not compare.

    Returns:
        The loaded checkpoint.

    Raises:
        ConfigurationError: The checkpoint belongs to another model or tokenizer, or the address is invalid; nothing was
            changed.
        NotFoundError: The checkpoint does not exist.
        CorruptCheckpointError: The checkpoint is damaged; the model may be partly overwritten.
    """
    selected = select(address)
    load_selected_weights(selected, model, subject)
    return selected


def load_selected_weights(selected: Selected, model: nn.Module, subject: Subject | None = None) -> None:
    """Load a checkpoint's weights into a model's parameters and persistent buffers.

    Args:
        selected: the checkpoint.
        model: model with exactly the checkpoint's tensors, bare or wrapped by DistributedDataParallel and
            torch.compile.
        subject: tokenizer and dataset to compare with the checkpoint's. A checkpoint trained with another tokenizer is
            rejected. None: do not compare.

    Raises:
        ConfigurationError: The checkpoint belongs to another model or tokenizer; nothing was changed.
        CorruptCheckpointError: The checkpoint is damaged; the model may be partly overwritten.
    """
    _refuse_other_tokenizer(selected, subject)
    parts = [(part, _records(part)) for part in selected.manifest.parts]
    forms = {name: record for _, records in parts for name, record in records.items()}
    for record in forms.values():
        dtype_of(record)
    targets, problems = model_targets(model, forms)
    if problems:
        raise ConfigurationError(
            [f"{selected.title}: {problem}; use a checkpoint of this model" for problem in problems]
        )
    for part, records in parts:
        _read(selected, part, {name: targets[name].detach() for name in records})


def load_weights_together(gang: Gang, model: nn.Module, load: Callable[[], str]) -> str:
    """Call ``load`` on rank 0, which returns a title, and broadcast the model's tensors; return the title."""
    title = gang.ask_rank_zero(load)
    for tensor in model_tensors(model).values():
        gang.broadcast_(tensor.detach(), source=0)
    return title


def _records(part: PartRecord) -> dict[str, TensorRecord]:
    return {name: record for name, record in part.tensors.items() if name.startswith(MODEL_PREFIX)}


def _refuse_other_tokenizer(selected: Selected, subject: Subject | None) -> None:
    saved = selected.manifest.subject
    if subject is None or saved is None or saved.tokenizer_sha256 == subject.tokenizer_sha256:
        return
    raise ConfigurationError(
        [
            f"{selected.title}: trained with the tokenizer of dataset {saved.dataset_name!r}, which differs from "
            f"the tokenizer of {subject.dataset_name!r}, so its token ids have different meanings; tokenize this text "
            "with the checkpoint's tokenizer"
        ]
    )


def _read(selected: Selected, part: PartRecord, targets: dict[str, Tensor]) -> None:
    """Read directly into targets that match the checkpoint's type and layout, or else into temporary tensors."""
    buffers = {
        name: target if _is_of_form(target, part.tensors[name]) else _empty(part.tensors[name])
        for name, target in targets.items()
    }
    read_tensors(selected.backend, part, {name: bytes_of(each).numpy().data for name, each in buffers.items()})
    for name, target in targets.items():
        if buffers[name] is not target:
            target.copy_(buffers[name])


def _is_of_form(tensor: Tensor, record: TensorRecord) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == dtype_of(record) and tensor.is_contiguous()


def _empty(record: TensorRecord) -> Tensor:
    return torch.empty(record.shape, dtype=dtype_of(record))
