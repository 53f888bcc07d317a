"""Checkpoints that survive a kill at any moment: content-named chunks, an append-only log, one writer at a time."""
