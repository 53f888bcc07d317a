"""The parts of a change to the gang in place that do not depend on the training loop."""
