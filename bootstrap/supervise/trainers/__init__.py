"""A generation's trainer processes: launch, standby, guardian, stack dumps and results."""
