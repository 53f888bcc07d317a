"""Pre-warm: reads each block of a dataset on an EBS volume once, so that EBS loads it from the snapshot."""
