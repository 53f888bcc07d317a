"""Read-only commands: the status, events, metrics and problems of a run."""
