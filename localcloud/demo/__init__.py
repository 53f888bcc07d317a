"""`make demo`: the real stacks on the local cloud, a training run, an interruption, and the report of it."""
