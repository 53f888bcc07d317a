"""`make demo`: deploys the stacks to the embedded cloud, trains, interrupts a node, and reports."""
