"""The ledger: what a deployment's instances cost, by instance, zone, market, run and hour.

`machines` and `books` are pure: they turn reports about instances into charges. `documents` defines the stored objects,
`sources` asks AWS, and `keeper` updates the ledger in each control step.
"""
