"""Local servers and devices that benchmarks use in place of AWS."""
