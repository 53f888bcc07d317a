"""EC2 Fleet and Spot Fleet."""
