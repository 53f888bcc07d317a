"""Constructs for the NetworkStack: VPC endpoints, NAT gateway and flow logs."""
