"""The boot steps, one module each; `boot_sequence` lists them."""
