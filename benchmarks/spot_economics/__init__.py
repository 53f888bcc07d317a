"""Spot economics: what a run costs under several policies for places, by replaying recorded prices and capacity."""
