"""Data preparation: the run's function creates the dataset from raw objects, once for all nodes and later runs.

Layout of `datasets/prepared/<digest>/` in the dataset bucket:

    claims/<number %04d>.json   the node that does the work (conditional write, rewritten as a heartbeat)
    <number %04d>/              the dataset that this claim created, in the format of `publish` and `tokenize`
    prepared.json               number of the committed claim (conditional write)

The digest covers the function's code, name and options, and the names, sizes and ETags of the source objects.
"""
