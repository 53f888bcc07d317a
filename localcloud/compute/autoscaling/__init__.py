"""EC2 Auto Scaling: groups that keep their size with real instances."""
