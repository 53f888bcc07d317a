"""One concern a file: what the stacks are made of."""
