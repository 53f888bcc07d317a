"""The training loop. Start reading at :func:`training.loop.trainer.train`."""
