"""The commands of `python -m stacks`, a module each: `add` declares its arguments and says what runs it."""
