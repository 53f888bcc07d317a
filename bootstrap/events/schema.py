"""Schema of the node's events: one dataclass for each event, one field for each key.

The event's name is its class name in snake case. Every key is always present, and null means that the key does not
apply. A field's annotation is its description in docs/events.md, which `python -m bootstrap events` writes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

SCHEMA_VERSION = 2
"""Version of the event schema, which every event contains as `schema_version`."""

_Message = Annotated[str | None, "description of the problem"]
_Remedy = Annotated[str | None, "how to fix it"]
_Generation = Annotated[int, "number of the generation"]
_RunDigest = Annotated[str, "SHA-256 of the run document"]


@dataclass(frozen=True)
class Event:
    """Base class of all events."""

    @classmethod
    def event_name(cls) -> str:
        """Return the value for the key `event`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        """Return the keys of this event as JSON values."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}


# Boot


@dataclass(frozen=True)
class BootStarted(Event):
    """The boot has read the node document and is starting its steps."""


@dataclass(frozen=True)
class BootStep(Event):
    """A boot step ended."""

    step: Annotated[str, "name of the step"]
    seconds: Annotated[float, "duration, measured with the monotonic clock"]
    started_unix_seconds: Annotated[float, "time when the step started"]
    ended_unix_seconds: Annotated[float, "time when the step ended"]
    outcome: Literal["done", "skipped", "failed"]


@dataclass(frozen=True)
class BootWaiting(Event):
    """A boot step waits for something that is still starting, such as a driver, a disk or a service in the image."""

    message: Annotated[str, "description of the problem"]
    limit_seconds: Annotated[float, "the step fails if the problem persists for this long"]


@dataclass(frozen=True)
class BootFailed(Event):
    """The boot or the supervisor failed, and the instance shuts down. Also uploaded to the control bucket."""

    step: Annotated[str, "step that failed; `node_document` and `supervise` are not steps"]
    message: Annotated[str, "description of the failure"]
    command: Annotated[tuple[str, ...] | None, "command line of the program that failed"]
    exit_code: Annotated[int | None, "the program's exit code"]
    output_tail: Annotated[str, "last lines of the program's output, or a traceback"]
    remedy: Annotated[str, "how to fix it"]


@dataclass(frozen=True)
class BootFinished(Event):
    """All boot steps are done, and the supervisor starts."""

    seconds: Annotated[float, "duration of the boot"]


@dataclass(frozen=True)
class InstanceFault(Event):
    """A hardware, driver or configuration fault on the instance, detected during boot or training."""

    message: Annotated[str, "description of the fault"]
    action: Annotated[Literal["continue", "terminate"], "`terminate`: the instance shuts down"]
    remedy: Annotated[str, "how to fix it"]


@dataclass(frozen=True)
class GpusReset(Event):
    """The GPUs were reset because a fault required it."""


@dataclass(frozen=True)
class FabricManagerStarted(Event):
    """The fabric manager for the NVLink switches was not running and was started."""


# Storage


@dataclass(frozen=True)
class CheckpointCopy(Event):
    """State of this node's copy of a checkpoint volume in another zone."""

    outcome: Annotated[
        Literal["created", "found", "retained", "none"],
        "`retained`: EC2 will not delete the copy with the instance; `none`: the node runs without a copy",
    ]
    mount: Annotated[str, "mount point"]
    volume_id: Annotated[str | None, "id of the copy"]
    snapshot_id: Annotated[str | None, "snapshot that the copy was created from"]
    message: _Message = None
    remedy: _Remedy = None


@dataclass(frozen=True)
class CheckpointSnapshot(Event):
    """Result of the checkpoint volume snapshot that a leaving node creates."""

    outcome: Literal["created", "not_needed", "failed", "unknown"]
    volume_id: Annotated[str | None, "the mounted volume"] = None
    snapshot_id: Annotated[str | None, "the new snapshot, or an existing one that is recent enough"] = None
    deleted_snapshot_ids: Annotated[tuple[str, ...], "older snapshots from leaving nodes that were deleted"] = ()
    message: _Message = None
    remedy: _Remedy = None


@dataclass(frozen=True)
class VolumeInitialization(Event):
    """Result of checking that EBS initializes a volume as the node document specifies."""

    volume_id: Annotated[str, "id of the volume"]
    mount: Annotated[str, "mount point"]
    mode: Literal["provisioned_rate", "fast_snapshot_restore"]
    enabled: Annotated[bool, "whether EBS initializes the volume; if false, the node reads the files itself"]
    mib_per_second: Annotated[int | None, "provisioned initialization rate"]
    remedy: _Remedy = None


@dataclass(frozen=True)
class Prewarm(Event):
    """Progress of the pre-warm, which reads each block of a dataset on a volume once."""

    state: Literal["started", "first_read", "progress", "finished", "stopped", "failed"]
    dataset: Annotated[str, "name of the dataset"]
    source: Annotated[str | None, "device that is read, or `files`"] = None
    bytes_done: Annotated[int | None, "bytes read, including earlier attempts"] = None
    bytes_total: Annotated[int | None, "bytes to read"] = None
    mib_per_second: Annotated[float | None, "rate of this attempt"] = None
    remaining_seconds: Annotated[float | None, "estimated time remaining at this rate"] = None
    message: _Message = None


@dataclass(frozen=True)
class StagingProgress(Event):
    """Progress of downloading large objects, emitted at most every 5 s."""

    bytes_done: Annotated[int, "bytes on disk, including earlier attempts"]
    bytes_total: Annotated[int, "bytes of all large objects"]
    mib_per_second: Annotated[float, "rate of this attempt"]
    remaining_seconds: Annotated[float, "estimated time remaining at this rate"]


@dataclass(frozen=True)
class DataPreparation(Event):
    """Progress of data preparation. One node runs the run's function on raw objects for all nodes."""

    state: Literal["found", "waiting", "started", "progress", "taken_over", "finished", "released", "failed"]
    url: Annotated[str, "location of the prepared data in the dataset bucket"]
    stage: Literal["fetching", "preparing", "publishing"] | None = None
    seconds: Annotated[float | None, "time since this node started the work"] = None
    source_objects: Annotated[int | None, "number of source objects"] = None
    source_bytes: Annotated[int | None, "total size of the source objects in bytes"] = None
    bytes_on_disk: Annotated[int | None, "bytes in the working directory"] = None
    bytes: Annotated[int | None, "size of the result in bytes"] = None
    owner_instance_id: Annotated[str | None, "node that does the work, or did it before this node took over"] = None
    silent_seconds: Annotated[float | None, "time since that node's last heartbeat"] = None
    message: _Message = None


# Supervisor


@dataclass(frozen=True)
class SupervisorStarted(Event):
    """The supervisor has started."""

    instance_type: Annotated[str, "EC2 instance type"]
    availability_zone: Annotated[str, "availability zone"]
    market: Annotated[str, "`spot` or `on-demand`"]
    private_address: Annotated[str, "private IPv4 address"]


@dataclass(frozen=True)
class StandbyReady(Event):
    """The process for the next generation has imported torch and the trainer."""

    seconds: Annotated[float, "duration of the imports"]


@dataclass(frozen=True)
class RunDocumentChanged(Event):
    """The run document has changed, and the trainers restart in place."""

    old_digest: Annotated[str, "SHA-256 of the old run document"]
    new_digest: Annotated[str, "SHA-256 of the new run document"]


@dataclass(frozen=True)
class DesiredStateChanged(Event):
    """An operator stopped or resumed the deployment, or requested a restart of the trainers."""

    state: Literal["running", "stopped"]
    requested_by: Annotated[str | None, "ARN of the principal that requested it"] = None


@dataclass(frozen=True)
class RunDocumentRefused(Event):
    """The run document or the desired state is invalid, and the last valid documents stay in effect."""

    message: Annotated[str, "the parameter and every problem in it"]


@dataclass(frozen=True)
class ControlRecordSetAside(Event):
    """An object under the run's control prefix is not a valid control record. Emitted once; the run continues."""

    url: Annotated[str, "URL of the object, or of the prefix with too many objects"]
    message: Annotated[str, "the rule that the object violates"]
    remedy: Annotated[str, "how to fix it"]


@dataclass(frozen=True)
class RunLoadingFailed(Event):
    """This node cannot load the code or dataset that a run document specifies."""

    run_digest: _RunDigest
    message: Annotated[str, "description of the failure and its remedy"]


@dataclass(frozen=True)
class GangIncomplete(Event):
    """Too few nodes are ready after `gang_timeout_seconds`. Emitted once for each wait."""

    ready_instance_ids: Annotated[tuple[str, ...], "nodes that are ready, including this one"]
    nodes: Annotated[int, "number of nodes in a complete gang"]
    min_nodes: Annotated[int, "number of nodes in the smallest gang that may train"]
    waited_seconds: Annotated[float, "time since this node became ready"]
    message: Annotated[str, "description of the problem"]
    remedy: Annotated[str, "how to fix it"]


@dataclass(frozen=True)
class ElectionLost(Event):
    """Another node wrote this generation's record first."""

    generation: _Generation
    message: Annotated[str, "description"]
    remedy: Annotated[str, "how to fix it"]


@dataclass(frozen=True)
class GenerationStarted(Event):
    """This node started the trainers of a generation."""

    generation: _Generation
    members: Annotated[tuple[str, ...], "instance ids in rank order"]
    rank: Annotated[int, "rank of this node"]
    world_size: Annotated[int, "number of trainer processes on all nodes"]
    run: Annotated[str, "name of the run"]
    run_digest: _RunDigest


@dataclass(frozen=True)
class GenerationEnded(Event):
    """The trainers of a generation ended on this node."""

    generation: _Generation
    outcome: Literal["finished", "stopped", "failed", "lost_peer", "bad_configuration"]
    step: Annotated[int, "last step that the trainers are known to have reached"]
    message: Annotated[str, "cause, as far as this node can determine it"]
    remedy: _Remedy = None


@dataclass(frozen=True)
class ResultsUploaded(Event):
    """A generation's run directory was uploaded, smallest files first, up to 256 MiB in total."""

    generation: _Generation
    url: Annotated[str, "destination in the checkpoint bucket"]
    files: Annotated[int, "number of files selected"]
    bytes: Annotated[int, "bytes uploaded"]
    skipped_files: Annotated[tuple[str, ...], "names of files over the limit, at most 20"]
    message: Annotated[str, "error that ended the upload early, or an empty string"]


@dataclass(frozen=True)
class RunFinished(Event):
    """The run reached its last step."""

    run: Annotated[str, "name of the run"]
    run_digest: _RunDigest
    step: Annotated[int, "last step"]


@dataclass(frozen=True)
class InterruptionNotice(Event):
    """AWS will reclaim this spot instance."""

    action: Annotated[str, "`terminate`, `stop` or `hibernate`"]
    reclaim_unix_seconds: Annotated[float, "time of the action"]


@dataclass(frozen=True)
class RebalanceRecommendation(Event):
    """EC2 reports an elevated risk of interruption, and the trainers write an extra checkpoint."""

    notice_time: Annotated[str, "time of the recommendation, in the format of instance metadata"]


@dataclass(frozen=True)
class LifecycleTarget(Event):
    """The Auto Scaling group is moving this instance to another lifecycle state."""

    state: Annotated[str, "target lifecycle state"]


@dataclass(frozen=True)
class ClockJumped(Event):
    """This machine's clock was stepped by 5 s or more. Deadlines use the monotonic clock."""

    seconds: Annotated[float, "size of the step; negative if the clock was set back"]
    message: Annotated[str, "description"]
    remedy: Annotated[str, "how to fix it"]


@dataclass(frozen=True)
class NodeLeaving(Event):
    """The supervisor is exiting."""

    reason: Annotated[str, "cause"]


@dataclass(frozen=True)
class GpuUse(Event):
    """Utilization and memory of the node's GPUs. Emitted every 30 s."""

    gpus: Annotated[int, "number of GPUs"]
    gpu_utilization_percent: Annotated[float, "mean across the GPUs"]
    idlest_gpu_utilization_percent: Annotated[float, "minimum across the GPUs"]
    gpu_memory_used_mib: Annotated[float, "sum across the GPUs"]
    gpu_memory_total_mib: Annotated[float, "sum across the GPUs"]


@dataclass(frozen=True)
class Trainer(Event):
    """A metric record from rank 0 of the trainer (docs/architecture.md, section 6)."""

    record: Annotated[Mapping[str, Any], "the record"]


@dataclass(frozen=True)
class TrainerOutput(Event):
    """New lines of the trainers' standard output and error on this node, at most 4 KiB per second on average."""

    generation: _Generation
    rank: Annotated[int, "rank of this node"]
    text: Annotated[str, "the lines"]
    dropped_bytes: Annotated[int, "bytes dropped before these lines because of the limit"]


EVENTS: tuple[type[Event], ...] = tuple(Event.__subclasses__())
"""All events, in the order of this module."""
