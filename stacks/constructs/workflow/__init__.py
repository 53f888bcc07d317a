"""The state machine of a pipeline."""
