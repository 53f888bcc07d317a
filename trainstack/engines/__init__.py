"""The engines that run a training: a fleet of the stacks, a Slurm cluster, or a Kubernetes cluster.

The commands call an `Engine`.
"""
