"""The boot steps, one per module. `boot_sequence` lists them."""
