"""The engines that run a training: a fleet of the stacks, or a Slurm cluster. The commands call an `Engine`."""
