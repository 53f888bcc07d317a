"""Resources that cost money without a run."""
