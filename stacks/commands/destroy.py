"""`destroy`: delete the fleet and all other billed resources except the data, and list the data with its price."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ALLOW = "allow-destroy=true"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "destroy",
        help="delete the fleet, the network and the alarms; keep the data and list its monthly price",
        description="Deletes ObservabilityStack, TrainingStack and NetworkStack. StorageStack is deleted, with all "
        "objects in its buckets, only with --data, `storage.deletion: destroy` in the file, and `--context "
        "allow-destroy=true`. If the remaining data includes a Lustre file system, NetworkStack remains without "
        "endpoints, NAT gateway and flow logs. The exit code is 1 if an AWS call failed.",
    )
    parser.add_argument("config", type=Path, help="deployment file, such as config/demo.yaml")
    parser.add_argument("--force", action="store_true", help="do not prompt before deleting")
    parser.add_argument("--data", action="store_true", help="also delete the data; requires both settings")
    parser.add_argument(
        "-c", "--context", action="append", default=[], metavar="KEY=VALUE", help="allow-destroy=true, for --data"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Imported here so that the other commands start faster without boto3.
    from stacks.delivery.delete_data import delete_data
    from stacks.delivery.destroy import destroy
    from stacks.delivery.sessions import AccountError
    from stacks.errors import ConfigError, DeployError, Problem
    from stacks.loading import load

    try:
        config = load(options.config)
        if options.data and not (config.storage.deletion == "destroy" and ALLOW in options.context):
            problem = Problem(
                "storage.deletion",
                config.storage.deletion,
                f"--data needs `destroy` here, and --context {ALLOW}",
                "set both, or omit --data to keep the data",
            )
            raise ConfigError(str(options.config), [problem])
        destroy(config, options.config, is_confirmed=options.force)
        if options.data:
            delete_data(config, options.config)
    except (AccountError, DeployError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
