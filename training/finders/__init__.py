"""Finding settings by trying them: how much fits, and how fast it may learn."""
