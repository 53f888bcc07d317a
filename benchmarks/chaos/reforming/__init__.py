"""Changes of a gang in place under chaos: real ranks, and handovers written by the benchmark, not by supervisors."""
