"""Changes that need approval because the review does not know them to be safe.

`tables` and the modules `tables_*` list the properties that the review understands, by resource type. Everything else
needs approval: an unknown type, an unknown property, a value that cannot be evaluated, and content that a review cannot
judge (code of functions and nodes, user data, images). `spending` adds costlier changes, and `delivery` edits
to the section that decides what a pipeline deploys.
"""
