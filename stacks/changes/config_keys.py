"""Maps each template property to the deployment file keys that affect it.

Each path is a shell pattern for STACK/LOGICAL-ID/PROPERTY/..., and each key includes all keys below it. All matching
patterns contribute their keys. The stacks of all slots match as TrainingStack. A test compares the table with the
stacks.
"""

from __future__ import annotations

TYPES = ("capacity.instance_types", "capacity.auto")
VOLUMES = ("storage.dataset_volume", "storage.checkpoint_volume", "storage.shared_volume")
NETWORK = ("network.cidr", "network.zones", "network.existing")
FABRIC = ("node.fabric", *TYPES, "capacity.nodes")
"""Keys that affect the network. With several nodes, `fabric: auto` selects EFA if the instance types support it."""
ZONES = (
    "capacity.zone_policy", "capacity.placement", "capacity.reservation", *FABRIC, "network.zones", "network.existing",
    "storage.checkpoint_volume", "storage.shared_volume", "storage.lustre",
)  # fmt: skip
"""Keys that determine the candidate subnets and how many each attempt uses."""
PREPARE = "training.prepare"
MARKET = ("capacity.market", "capacity.on_demand_base", "capacity.nodes", "capacity.reservation")
TRAINING_TIME = (
    "limits.training_hours", "limits.deadline_hours", "training.config", "training.processes_per_node",
    "capacity.nodes", *TYPES,
)  # fmt: skip
"""Keys that determine the expected training time."""
IDENTITY_KEYS = ("name", "region", "account")

_DOCUMENT = "TrainingStack/NodeTemplate*/LaunchTemplateData/UserData/node document"
_RUN = "TrainingStack/Run/Value/run document"
_SETTINGS = "TrainingStack/RunController*/Environment/Variables"

EXCLUSIVE_KEYS_BY_PATH: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("*/Tags*", ("tags",)),
    ("*/TagSpecifications*", ("tags",)),
    ("*/DeletionPolicy", ("storage.deletion",)),
    ("*/UpdateReplacePolicy", ("storage.deletion",)),
    ("*/PermissionsBoundary*", ("node.permissions_boundary",)),
    ("*/TerminationProtection", ("storage.deletion",)),
)
"""Paths that only these keys and IDENTITY_KEYS affect. Matching patterns in KEYS_BY_PATH do not apply to them."""

KEYS_BY_PATH: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("*", IDENTITY_KEYS),
    ("NetworkStack/Vpc*", NETWORK),
    ("NetworkStack/Routes*", NETWORK),
    ("NetworkStack/Isolated*", NETWORK),
    ("NetworkStack/InternetGateway*", ("network.nat", *NETWORK)),
    ("NetworkStack/Public*", ("network.nat", *NETWORK)),
    ("NetworkStack/Nat*", ("network.nat", *NETWORK)),
    ("NetworkStack/Out*", ("network.nat", *NETWORK)),
    ("NetworkStack/Nodes*", (*NETWORK, *FABRIC)),
    ("NetworkStack/Endpoints*", NETWORK),
    ("NetworkStack/S3*", NETWORK),
    ("NetworkStack/DynamoDb*", NETWORK),
    ("NetworkStack/Ssm*", NETWORK),
    ("NetworkStack/SsmMessages*", (*NETWORK, "node.session_manager")),
    ("NetworkStack/Logs*", NETWORK),
    ("NetworkStack/AutoScaling*", (*NETWORK, "capacity.backend")),
    ("NetworkStack/Ec2*", (*NETWORK, *VOLUMES)),
    ("NetworkStack/Flow*", ("network.flow_log_retention_days", "network.existing")),
    ("NetworkStack/PermissionsBoundary*", ("node.permissions_boundary",)),
    (
        "StorageStack/PermissionsBoundary*",
        ("node.permissions_boundary", *VOLUMES, "capacity.backend", "capacity.slots", "pipeline"),
    ),
    ("StorageStack/Key*", ("capacity.backend", *MARKET, *VOLUMES, "storage.lustre")),
    ("StorageStack/*LinkedRole*", ("capacity.backend", *MARKET, "storage.lustre")),
    ("StorageStack/AccessLogs*/LifecycleConfiguration*", ("storage.access_log_days",)),
    ("StorageStack/Datasets*/LifecycleConfiguration*", ("storage.archive_after_days",)),
    ("StorageStack/Datasets*/AccelerateConfiguration*", ("storage.transfer_acceleration",)),
    (
        "StorageStack/Checkpoints*/LifecycleConfiguration*",
        ("storage.archive_after_days", "storage.noncurrent_version_days"),
    ),
    ("StorageStack/Control*/LifecycleConfiguration*", ("storage.node_report_days",)),
    ("StorageStack/Images*", ("image",)),
    ("StorageStack/CheckpointVolume*", ("storage.checkpoint_volume",)),
    ("StorageStack/Snapshots*", ("storage.checkpoint_volume",)),
    ("StorageStack/SharedVolume*", ("storage.shared_volume",)),
    ("StorageStack/Lustre*", ("storage.lustre",)),
    ("TrainingStack/FastRestore*", ("storage.dataset_volume", "network.zones", "observability.log_retention_days")),
    ("TrainingStack/Events/RetentionInDays", ("observability.log_retention_days",)),
    ("TrainingStack/*Logs*/RetentionInDays", ("observability.log_retention_days",)),
    (
        "TrainingStack/NodeRole*",
        (
            *("node.session_manager", "node.extra_policies", "capacity.backend", *VOLUMES, "storage.lustre", PREPARE),
            "training.config.initial_weights",
        ),
    ),
    ("TrainingStack/Placement*", ("capacity.placement", "capacity.partitions")),
    ("TrainingStack/Reservation*", ("capacity.reservation", "capacity.placement")),
    ("TrainingStack/NodeTemplate*/LaunchTemplateData/ImageId", ("node.ami",)),
    (
        "TrainingStack/NodeTemplate*/LaunchTemplateData/BlockDeviceMappings*",
        ("node.root_volume", "node.root_device", "storage.dataset_volume"),
    ),
    ("TrainingStack/NodeTemplate*/LaunchTemplateData/NetworkInterfaces*", FABRIC),
    ("TrainingStack/NodeTemplate*/LaunchTemplateData/Placement*", ("capacity.placement",)),
    (
        "TrainingStack/NodeTemplate*/LaunchTemplateData/CapacityReservation*",
        ("capacity.reservation", "capacity.market"),
    ),
    ("TrainingStack/NodeTemplate*/LaunchTemplateData/InstanceMarketOptions*", ("capacity.market",)),
    ("TrainingStack/NodeTemplate*/LaunchTemplateData/InstanceType", (*TYPES, "capacity.market")),
    ("TrainingStack/NodeTemplateLayout*", FABRIC),
    (f"{_DOCUMENT}/gpus", TYPES),
    (f"{_DOCUMENT}/fabric", FABRIC),
    (f"{_DOCUMENT}/python/interpreter", ("node.python.interpreter",)),
    (f"{_DOCUMENT}/python/packages*", ("node.python.packages",)),
    ("TrainingStack/NodeTemplate*/LaunchTemplateData/UserData/shim", ("node.python.interpreter",)),
    (f"{_DOCUMENT}/supervise/poll_seconds", ("node.supervise.poll_seconds",)),
    (f"{_DOCUMENT}/supervise/heartbeat_seconds", ("node.supervise.heartbeat_seconds",)),
    (f"{_DOCUMENT}/supervise/heartbeat_timeout_seconds", ("node.supervise.heartbeat_timeout_seconds",)),
    (f"{_DOCUMENT}/supervise/gang_timeout_seconds", ("capacity.gang_timeout_seconds",)),
    (f"{_DOCUMENT}/supervise/boot_timeout_seconds", ("node.boot_timeout_seconds",)),
    (f"{_DOCUMENT}/volumes*", VOLUMES),
    (f"{_DOCUMENT}/lustre*", ("storage.lustre",)),
    ("TrainingStack/Fleet*", ("capacity.backend", *ZONES)),
    ("TrainingStack/Fleet*OnDemand", ("limits.deadline_hours", "capacity.market", *ZONES)),
    ("TrainingStack/Fleet*/MaxSize", ("capacity.nodes",)),
    ("TrainingStack/Fleet*/MaxInstanceLifetime", ("capacity.maintenance.max_lifetime_days",)),
    ("TrainingStack/Fleet*/CapacityRebalance", ("capacity.maintenance.rebalance",)),
    ("TrainingStack/Fleet*/VPCZoneIdentifier*", ZONES),
    ("TrainingStack/Fleet*/CapacityReservationSpecification*", ("capacity.reservation", "capacity.market")),
    ("TrainingStack/Fleet*/LaunchTemplate*", (*FABRIC, "capacity.market", *ZONES, "capacity.max_price_usd")),
    ("TrainingStack/Fleet*/MixedInstancesPolicy", ("capacity.market",)),
    ("TrainingStack/Fleet*/MixedInstancesPolicy/LaunchTemplate/Overrides*", FABRIC),
    ("TrainingStack/Fleet*/MixedInstancesPolicy/LaunchTemplate/LaunchTemplateSpecification*", FABRIC),
    (
        "TrainingStack/Fleet*/MixedInstancesPolicy/InstancesDistribution*/OnDemandBaseCapacity",
        ("capacity.on_demand_base", "capacity.market"),
    ),
    (
        "TrainingStack/Fleet*/MixedInstancesPolicy/InstancesDistribution*/OnDemandPercentageAboveBaseCapacity",
        ("capacity.market",),
    ),
    ("TrainingStack/Fleet*/*AllocationStrategy", ("capacity.allocation_strategy", "capacity.market")),
    ("TrainingStack/Fleet*/*/SpotMaxPrice", ("capacity.max_price_usd",)),
    ("TrainingStack/Fleet*/*SpotPrice", ("capacity.max_price_usd",)),
    ("TrainingStack/Fleet*/*OnDemandAllocationStrategy", ("capacity.on_demand_base",)),
    ("TrainingStack/Fleet*/*LaunchTemplateConfigs*", (*FABRIC, *ZONES, "capacity.max_price_usd")),
    ("TrainingStack/Fleet*/*ReplaceUnhealthyInstances", ("capacity.maintenance.replace_unhealthy",)),
    (
        "TrainingStack/Fleet*/*MaintenanceStrategies*",
        ("capacity.maintenance.rebalance", "capacity.maintenance.rebalance_termination_delay_seconds"),
    ),
    ("TrainingStack/Fleet*/SpotOptions*", ("capacity.market",)),
    ("TrainingStack/Fleet*/TargetCapacitySpecification*", ("capacity.market",)),
    ("TrainingStack/RunController*", ("capacity.backend", *ZONES)),
    (
        "TrainingStack/RunControllerRole*",
        ("limits.deadline_hours", "limits.on_deadline_miss", "capacity.choose", *MARKET, *ZONES, *VOLUMES),
    ),
    (f"{_SETTINGS}/NODES", ("capacity.nodes",)),
    (f"{_SETTINGS}/ON_DEMAND_BASE", MARKET),
    (f"{_SETTINGS}/SUBNET_IDS", ZONES),
    (f"{_SETTINGS}/ONE_SUBNET_AT_A_TIME", ZONES),
    (f"{_SETTINGS}/GANG_TIMEOUT_SECONDS", ("capacity.gang_timeout_seconds",)),
    (f"{_SETTINGS}/BOOT_FAILURE_LIMIT", ("capacity.boot_failure_limit",)),
    (f"{_SETTINGS}/BOOT_TIMEOUT_SECONDS", ("node.boot_timeout_seconds",)),
    (f"{_SETTINGS}/CHOOSE", ("capacity.choose",)),
    (f"{_SETTINGS}/PLACES", ("capacity.choose", "limits.deadline_hours", *ZONES)),
    (f"{_SETTINGS}/LIMIT_USD", ("limits.usd",)),
    (f"{_SETTINGS}/LIMIT_RUN_HOURS", ("limits.run_hours",)),
    (f"{_SETTINGS}/DEADLINE_HOURS", ("limits.deadline_hours",)),
    (f"{_SETTINGS}/ON_DEADLINE_MISS", ("limits.on_deadline_miss",)),
    (f"{_SETTINGS}/TRAINING_HOURS", TRAINING_TIME),
    (f"{_SETTINGS}/ON_DEMAND_USD_PER_HOUR", TYPES),
    (f"{_SETTINGS}/DATASET_BUCKET", (*VOLUMES, "storage.lustre")),
    ("TrainingStack/Run/DependsOn*", ("capacity.backend", *ZONES)),
    (f"{_RUN}/run", ("training.run",)),
    (f"{_RUN}/dataset", ("training.dataset",)),
    (f"{_RUN}/prepare*", (PREPARE,)),
    (f"{_RUN}/code/*", ("training.code",)),
    (f"{_RUN}/nodes", ("capacity.nodes",)),
    (f"{_RUN}/min_nodes", ("capacity.min_nodes", "capacity.nodes")),
    (f"{_RUN}/processes_per_node", ("training.processes_per_node", *TYPES)),
    (f"{_RUN}/training/*", ("training.config",)),
    ("PipelineStack*", ("delivery",)),
    ("WorkflowStack*", ("pipeline", "capacity.slots")),
    ("WorkflowStack/Machine/DefinitionString*", ("training", "capacity", "node.ami", "node.python")),
    ("WorkflowStack/MachineRole*", ("training", "capacity", "node.ami", "node.python")),
    ("WorkflowStack/Resource*/Environment*", ("training.code",)),
    ("WorkflowStack/Logs*/RetentionInDays", ("observability.log_retention_days",)),
    ("ObservabilityStack/*Alarms*", ("observability.alarms",)),
    ("ObservabilityStack/*AlarmsHeartbeatMissing*", ("observability.alarms.heartbeat_missing_minutes",)),
    ("ObservabilityStack/*AlarmsUsd*", ("limits.usd", "limits.warn_at_percent")),
    ("ObservabilityStack/*AlarmsUsdPerHour*", ("observability.alarms.usd_per_hour",)),
    ("ObservabilityStack/*AlarmsTooFewNodes*", ("observability.alarms.too_few_nodes_minutes",)),
    ("ObservabilityStack/PipelineFailed*", ("pipeline",)),
    ("ObservabilityStack/Slot*", ("capacity.slots", "pipeline")),
    ("ObservabilityStack/Dashboard*", ("observability.dashboard", "capacity.slots", "pipeline")),
    ("ObservabilityStack/Zombies*", ("observability.daily_zombie_search",)),
    ("ObservabilityStack/ZombiesLogs*/RetentionInDays", ("observability.log_retention_days",)),
    ("ObservabilityStack/Topic*", ("observability.emails",)),
    ("ObservabilityStack/Budget*", ("budget", "observability.emails", "capacity.slots")),
)  # fmt: skip
