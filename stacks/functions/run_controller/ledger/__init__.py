"""The ledger: the costs of a deployment's instances by instance, zone, market, run and hour.

`machines` and `books` are pure: they turn reports about instances into charges. `documents` defines the stored objects,
`sources` queries AWS, and `keeper` updates the ledger in each control step.
"""
