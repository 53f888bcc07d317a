"""Where a run's batches come from: the staged tokens, or a dataset of the user's own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from training.checkpoint.backend import open_backend
from training.config import DataConfig, TrainingConfig
from training.data.batches import TrainBatches, ValidationBatches
from training.data.dataset import RECORD_FILE, Dataset, DatasetRecord, SplitName, open_dataset, read_record
from training.data.mapped import MappedTrainBatches, MappedValidationBatches, worker_count
from training.data.samples import Documents, Samples, Windows
from training.data.streaming import KeptWindows, RangeReader, RemoteSplit, StreamedOrder, StreamedWindows
from training.distributed import Gang
from training.errors import ConfigurationError
from training.own_code import build_dataset

HASHED_AT_START_BYTES = 1 << 30
"""Datasets up to this are hashed by one process a node at each start (a fraction of a second); larger ones were hashed
when they were staged, and only their sizes are checked."""


@dataclass(frozen=True)
class Source:
    """Batches for training and validation.

    Attributes:
        train: in the run's order.
        validation: the same ones every time.
        tokens: record of the token dataset; None: the user's own dataset.
        name: of the dataset.
        identity: two sources with the same one train the same.
        loss_terms_per_sequence: tokens of a sequence, or 1: what speed is counted in.
    """

    train: TrainBatches | MappedTrainBatches
    validation: ValidationBatches | MappedValidationBatches
    tokens: DatasetRecord | None
    name: str
    identity: str
    loss_terms_per_sequence: int


def open_source(config: TrainingConfig, directory: Path, url: str | None, gang: Gang) -> Source:
    """Open and check the data on every rank; what is wrong on one is raised on all.

    Args:
        config: of the run.
        directory: of the staged files; of tokens that are streamed, of dataset.json, and for what is kept of them.
        url: where streamed tokens are.
        gang: of all ranks.

    Raises:
        ConfigurationError: there is no such data, it is damaged, or not the same on every node.
    """
    source: Source | None = None
    failure: Exception | None = None
    try:
        if config.data.function is not None:
            source = _open_own(config, directory, gang)
        elif config.data.stream_cache_gib is not None:
            source = _open_stream(config, directory, url, gang)
        else:
            source = _open_tokens(config, directory, gang)
    except ConfigurationError as error:
        failure = error
    gang.raise_together(failure)
    assert source is not None, "a failure was raised"
    if len(set(gang.gather(source.identity))) > 1:
        raise ConfigurationError([f"{directory}: is not the same dataset on every node; stage it again"])
    return source


def _open_tokens(config: TrainingConfig, directory: Path, gang: Gang) -> Source:
    dataset = open_dataset(directory)
    context = config.model.shape.context
    dataset.require_sequences(context)
    if gang.local_rank == 0 and dataset.total_bytes() <= HASHED_AT_START_BYTES:
        dataset.verify_hashes()
    return Source(
        train=TrainBatches(
            _samples(config.data, dataset, "train", context), config.seed, gang.device, config.global_batch_sequences
        ),
        validation=ValidationBatches(
            _samples(config.data, dataset, "validation", context), _validation_sequences(config), gang.device
        ),
        tokens=dataset.record,
        name=dataset.record.name,
        identity=dataset.record.identity(),
        loss_terms_per_sequence=context,
    )


def _open_stream(config: TrainingConfig, directory: Path, url: str | None, gang: Gang) -> Source:
    if url is None:
        raise ConfigurationError(["data.stream_cache_gib: needs the dataset's address; give --dataset-url s3://..."])
    backend = open_backend(url)
    if not isinstance(backend, RangeReader):
        raise ConfigurationError([f"--dataset-url: {url}: only s3://bucket/prefix can be streamed; leave it out"])
    record = read_record(directory / RECORD_FILE)
    context = config.model.shape.context
    assert config.data.stream_cache_gib is not None, "asked before"
    train = StreamedWindows(
        RemoteSplit(backend, record, "train"),
        context,
        directory / "blocks" / record.identity()[:16],
        int(config.data.stream_cache_gib * 2**30),
    )
    validation = KeptWindows(RemoteSplit(backend, record, "validation"), context)
    for split, samples in (("train", train), ("validation", validation)):
        if not samples.count:
            raise ConfigurationError([f"{url}: the {split} split is shorter than model.context {context}; lower it"])
    order = StreamedOrder(train, config.seed, deletes=gang.local_rank == 0)
    return Source(
        train=TrainBatches(train, config.seed, gang.device, config.global_batch_sequences, order),
        validation=ValidationBatches(validation, _validation_sequences(config), gang.device),
        tokens=record,
        name=record.name,
        identity=record.identity(),
        loss_terms_per_sequence=context,
    )


def _samples(config: DataConfig, dataset: Dataset, split: SplitName, context: int) -> Samples:
    tokens = dataset.split(split)
    if config.documents == "joined":
        return Windows(tokens, context)
    return Documents(tokens, context, dataset.record.end_of_text_id)


def _open_own(config: TrainingConfig, directory: Path, gang: Gang) -> Source:
    data = config.data
    assert data.function is not None, "asked before"
    train, validation = (
        build_dataset(data.function, data.options, split, directory) for split in ("train", "validation")
    )
    description = json.dumps([data.function, data.options, len(train), len(validation)], sort_keys=True)
    return Source(
        train=MappedTrainBatches(
            train,
            config.seed,
            gang.device,
            config.global_batch_sequences,
            worker_count(data.workers, gang.local_world_size),
            data.prefetch_batches,
        ),
        validation=MappedValidationBatches(validation, _validation_sequences(config), gang.device),
        tokens=None,
        name=data.function,
        identity=hashlib.sha256(description.encode()).hexdigest(),
        loss_terms_per_sequence=1,
    )


def _validation_sequences(config: TrainingConfig) -> int:
    return config.validation.batches * config.global_batch_sequences
