"""The node's disks and volumes: discovery, mounts, checkpoint volume copies, and the programs that they need."""
