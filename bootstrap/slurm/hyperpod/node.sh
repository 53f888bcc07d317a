#!/bin/bash
# The life-cycle script of an instance group, which its name contains. HyperPod has copied the folder from S3.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
group=$(basename "$0" .sh)
PYTHONPATH=$here/node.zip exec python3 -m bootstrap.slurm.hyperpod "$here/settings.json" "$group"
