"""EC2 Fleet and Spot Fleet: fleets that fill themselves over several pools, and keep themselves filled."""
