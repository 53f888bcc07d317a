"""Downloads from S3: archives by digest, many small objects with s5cmd, and large objects in ranges.

Large objects: `transfer` selects them, `large` requests ranges, and `worker` processes fetch the ranges. `partial`
records the ranges on disk, `window` limits the number of requests, `hasher` hashes the bytes before the first gap, and
`progress` reports. docs/adr/0014-downloads-of-large-objects.md explains why s5cmd does not download everything.
"""
