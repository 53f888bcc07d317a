"""The commands of `python -m stacks`, one per module. Each `add` declares arguments and the function to run."""
