"""Effects of property changes: update in place, replacement or failure."""
