"""A node's supervisor. `monitors` observe, `decide` is the pure policy, and `actor` carries out its actions.

`supervisor` is the main loop, `membership/` holds the records that supervisors share, and `trainers/` manages the
processes.
"""
