"""Checkpoints and stop requests for other training programs: hand-written loops, HF Trainer and Lightning."""
