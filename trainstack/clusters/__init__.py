"""Clusters that AWS services manage: their states, and the engine that runs jobs or pods on them."""
