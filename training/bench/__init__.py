"""Measuring this trainer on the machine at hand, with tokens that it makes itself."""
