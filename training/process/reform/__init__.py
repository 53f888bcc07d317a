"""A change to the gang in place: its handover, connections and state transfer, apart from the training loop."""
