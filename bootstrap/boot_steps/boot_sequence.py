"""The list of boot steps, in the order of `python -m bootstrap plan`. Independent steps run concurrently."""

from bootstrap.boot_steps.code import Code
from bootstrap.boot_steps.fabric import Fabric
from bootstrap.boot_steps.identity import Identity
from bootstrap.boot_steps.instance_checks import InstanceChecks
from bootstrap.boot_steps.local_disks import LocalDisks
from bootstrap.boot_steps.machine_settings import MachineSettings
from bootstrap.boot_steps.python_env import PythonEnv
from bootstrap.boot_steps.run_document import FetchRunDocument
from bootstrap.boot_steps.shared_storage import SharedStorage
from bootstrap.boot_steps.staging import Staging
from bootstrap.boot_steps.step_runner import Step
from bootstrap.boot_steps.trainer_ready import TrainerReady
from bootstrap.boot_steps.volumes import Volumes
from bootstrap.boot_steps.wheelhouse import Wheelhouse

STEPS: tuple[Step, ...] = (
    Identity(),
    InstanceChecks(),
    MachineSettings(),
    Fabric(),
    Wheelhouse(),
    PythonEnv(),
    FetchRunDocument(),
    Code(),
    LocalDisks(),
    Volumes(),
    SharedStorage(),
    Staging(),
    TrainerReady(),
)
