"""Executes a training run in jobs on a Slurm cluster.

The job script calls `begin`, `notice` and `conclude` on the first node, and starts `node` on every node. The first
three use only the standard library and parse under Python 3.9, because they run outside of containers.
"""
