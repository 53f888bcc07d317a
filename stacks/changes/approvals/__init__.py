"""Changes that need approval because the review does not recognize them as safe.

`tables` and the modules `tables_*` list the properties that the review recognizes, by resource type. Everything else
needs approval: an unknown type, an unknown property, a value that cannot be evaluated, and content that a review cannot
assess (code of functions and nodes, user data, images). `spending` adds cost increases. `delivery` adds edits to the
section that determines what a pipeline deploys.
"""
