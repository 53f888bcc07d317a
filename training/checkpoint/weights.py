"""A checkpoint's weights alone: without optimizer, scaler, random states and place in the data.

    load_weights("s3://bucket/runs/one#paper", model)    # the tag paper of that run; without #, its newest checkpoint

What is read is the chunks that hold the model's tensors, several at a time and each verified. It needs no process
group, and the store is not written to: a run that is at work in it does not notice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.checkpoint.layout import bytes_of, dtype_of
from training.checkpoint.manifest import PartRecord, Subject, TensorRecord
from training.checkpoint.reading import read_tensors
from training.checkpoint.selection import Selected, select
from training.checkpoint.state import model_targets, model_tensors
from training.distributed import Gang
from training.errors import ConfigurationError

MODEL_PREFIX = "model/"


def load_weights(address: str, model: nn.Module, subject: Subject | None = None) -> Selected:
    """Bring a model's parameters and persistent buffers to those of a checkpoint.

    Args:
        address: ``URL`` or ``URL#CHECKPOINT``, as for ``python -m training checkpoint``.
        model: bare or wrapped by DistributedDataParallel and torch.compile; has exactly the checkpoint's tensors.
        subject: what the model is for: a checkpoint that says that it was trained with another tokenizer is refused.

    Returns:
        The checkpoint.

    Raises:
        ConfigurationError: it is of another model or tokenizer, or the address is none; nothing was changed.
        NotFoundError: there is no such checkpoint.
        CorruptCheckpointError: it is damaged; the model may be partly overwritten.
    """
    selected = select(address)
    _refuse_other_tokenizer(selected, subject)
    parts = [(part, _records(part)) for part in selected.manifest.parts]
    forms = {name: record for _, records in parts for name, record in records.items()}
    for record in forms.values():
        dtype_of(record)
    targets, problems = model_targets(model, forms)
    if problems:
        raise ConfigurationError(
            [f"{selected.title}: {problem}; give a checkpoint of this model" for problem in problems]
        )
    for part, records in parts:
        _read(selected, part, {name: targets[name].detach() for name in records})
    return selected


def load_weights_together(gang: Gang, address: str, model: nn.Module, subject: Subject) -> str:
    """Do so once for all ranks; return what the checkpoint is called. Arguments and errors are those of the other."""
    title = gang.ask_rank_zero(lambda: load_weights(address, model, subject).title)
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
            f"{selected.title}: was trained with the tokenizer of dataset {saved.dataset_name!r}, which is not that of "
            f"{subject.dataset_name!r}, so that its token ids mean something else; tokenize this text with that one"
        ]
    )


def _read(selected: Selected, part: PartRecord, targets: dict[str, Tensor]) -> None:
    """Read straight into those targets whose bytes are the checkpoint's in form; into memory beside the others."""
    landed = {
        name: target if _is_of_form(target, part.tensors[name]) else _empty(part.tensors[name])
        for name, target in targets.items()
    }
    read_tensors(selected.backend, part, {name: bytes_of(each).numpy().data for name, each in landed.items()})
    for name, target in targets.items():
        if landed[name] is not target:
            target.copy_(landed[name])


def _is_of_form(tensor: Tensor, record: TensorRecord) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == dtype_of(record) and tensor.is_contiguous()


def _empty(record: TensorRecord) -> Tensor:
    return torch.empty(record.shape, dtype=dtype_of(record))
