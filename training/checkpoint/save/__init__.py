"""Saves checkpoints without stopping the training loop. A save has these steps:

1. In the trainer, `writer.CheckpointWriter.begin` uses `layout` to divide the state among the ranks and into chunks. It
   copies this rank's share to the `host_buffer`, and training continues.
2. `executors` pass the request and the buffer to the rank's writer process (or a thread of the trainer, in tests).
3. `writer_process` receives it and runs one save at a time.
4. `rank_save.Saver` hashes, encodes and stores the chunks; `progress` counts them, and with two tiers `local_tier`
   copies them from the local tier to the durable tier. Then each rank stores a list of its chunks, its part (`parts`).
5. On rank 0, `Saver` waits for the parts, writes the manifest, commits it through `log`, and runs `gc`.
"""
