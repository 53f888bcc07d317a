"""Compares the trainer's losses, gradient norms and weights with those of independent trainers."""
