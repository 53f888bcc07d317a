"""Data that a run's own function makes from raw objects: once for all nodes, and for all later runs of the same inputs.

Under `datasets/prepared/<digest>/` in the dataset bucket:

    claims/<number %04d>.json   who makes it (conditional write), rewritten as a heart-beat while the work goes on
    <number %04d>/              the dataset that the claim of this number made, as `publish` and `tokenize` make one
    prepared.json               which of them counts (conditional write: the commit)

The digest is over the function's code, its name and options, and the names, sizes and ETags of the source objects.
"""
