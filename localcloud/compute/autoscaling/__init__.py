"""EC2 Auto Scaling groups that launch emulated instances."""
