"""Opens a run's batches, from staged tokens, tokens streamed from S3, or a user-supplied dataset."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from training.checkpoint.storage.urls import open_backend
from training.config import TrainingConfig
from training.data.batches import TrainBatches, ValidationBatches
from training.data.dataset import RECORD_FILE, DatasetRecord, open_dataset, read_record
from training.data.mapped import MappedTrainBatches, MappedValidationBatches, build_dataset
from training.data.samples import samples_of
from training.data.streaming import CachedWindows, RangeReader, RemoteSplit, StreamedOrder, StreamedWindows
from training.data.workers import worker_count
from training.errors import ConfigurationError
from training.process.distributed import Gang

HASHED_AT_START_BYTES = 1 << 30
"""At each start, one process per node hashes datasets of up to this size, which takes a fraction of a second. Staging
verified the hashes of larger datasets, so only their file sizes are checked."""


@dataclass(frozen=True)
class Source:
    """Batches for training and validation.

    Attributes:
        train: training batches, in the run's order.
        validation: validation batches, identical at every validation.
        tokens: the token dataset's record; None for a user-supplied dataset.
        name: name of the dataset.
        identity: digest of the dataset; sources with equal identities yield the same samples.
        loss_terms_per_sequence: tokens per sequence; 1 for a user-supplied dataset. Throughput is measured in loss
        terms.
        probe: numbers that identify the contents of a user-supplied dataset.
        samples: method of dividing tokens into samples; None for a user-supplied dataset.
    """

    train: TrainBatches | MappedTrainBatches
    validation: ValidationBatches | MappedValidationBatches
    tokens: DatasetRecord | None
    name: str
    identity: str
    loss_terms_per_sequence: int
    probe: list[float | None] = field(default_factory=list)
    samples: Literal["joined", "apart", "streamed"] | None = None


def open_source(config: TrainingConfig, directory: Path, url: str | None, gang: Gang) -> Source:
    """Open and check the data on every rank. A failure on one rank is raised on all ranks.

    Args:
        config: training config.
        directory: directory that contains the staged files or, for streamed tokens, dataset.json and the block cache.
        url: the dataset's URL, required for streamed tokens.
        gang: all ranks.

    Raises:
        ConfigurationError: The data is missing, damaged, or differs between nodes.
    """
    source: Source | None = None
    failure: Exception | None = None
    try:
        if config.data.function is not None:
            source = _open_user_dataset(config, directory, gang)
        elif config.data.stream_cache_gib is not None:
            source = _open_stream(config, directory, url, gang)
        else:
            source = _open_tokens(config, directory, gang)
    except ConfigurationError as error:
        failure = error
    gang.raise_together(failure)
    assert source is not None, "a failure is raised above"
    if len(set(gang.gather(source.identity))) > 1:
        raise ConfigurationError([f"{directory}: differs between nodes; stage the dataset again"])
    if isinstance(source.train, MappedTrainBatches):
        return replace(source, probe=gang.ask_rank_zero(source.train.probe))
    return source


def _open_tokens(config: TrainingConfig, directory: Path, gang: Gang) -> Source:
    dataset = open_dataset(directory)
    sequence_length, documents = config.model.shape.sequence_length, config.data.documents
    dataset.require_sequences(sequence_length)
    if gang.local_rank == 0 and dataset.total_bytes() <= HASHED_AT_START_BYTES:
        dataset.verify_hashes()
    return Source(
        train=TrainBatches(
            samples_of(dataset, "train", sequence_length, documents), config.seed, gang.device, config.global_batch_size
        ),
        validation=ValidationBatches(
            samples_of(dataset, "validation", sequence_length, documents), _validation_sequences(config), gang.device
        ),
        tokens=dataset.record,
        name=dataset.record.name,
        identity=dataset.record.identity(),
        loss_terms_per_sequence=sequence_length,
        samples=config.data.documents,
    )


def _open_stream(config: TrainingConfig, directory: Path, url: str | None, gang: Gang) -> Source:
    if url is None:
        raise ConfigurationError(["data.stream_cache_gib: requires the dataset's URL; pass --dataset-url s3://..."])
    backend = open_backend(url)
    if not isinstance(backend, RangeReader):
        raise ConfigurationError([f"--dataset-url: {url}: must be s3://bucket/prefix with data.stream_cache_gib"])
    record = read_record(directory / RECORD_FILE)
    sequence_length = config.model.shape.sequence_length
    assert config.data.stream_cache_gib is not None, "checked by the caller"
    train = StreamedWindows(
        RemoteSplit(backend, record, "train"),
        sequence_length,
        directory / "blocks" / record.identity()[:16],
        int(config.data.stream_cache_gib * 2**30),
    )
    validation = CachedWindows(RemoteSplit(backend, record, "validation"), sequence_length)
    for split, samples in (("train", train), ("validation", validation)):
        if not samples.count:
            raise ConfigurationError(
                [f"{url}: the {split} split is shorter than model.sequence_length {sequence_length}; lower it"]
            )
    order = StreamedOrder(train, config.seed, deletes=gang.local_rank == 0)
    return Source(
        train=TrainBatches(train, config.seed, gang.device, config.global_batch_size, order),
        validation=ValidationBatches(validation, _validation_sequences(config), gang.device),
        tokens=record,
        name=record.name,
        identity=record.identity(),
        loss_terms_per_sequence=sequence_length,
        samples="streamed",
    )


def _open_user_dataset(config: TrainingConfig, directory: Path, gang: Gang) -> Source:
    data = config.data
    assert data.function is not None, "checked by the caller"
    train, validation = (
        build_dataset(data.function, data.options, split, directory) for split in ("train", "validation")
    )
    description = json.dumps([data.function, data.options, len(train), len(validation)], sort_keys=True)
    return Source(
        train=MappedTrainBatches(
            train,
            config.seed,
            gang.device,
            config.global_batch_size,
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
    return config.validation.batches * config.global_batch_size
