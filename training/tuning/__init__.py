"""Auto-tuning: finds the largest micro-batch size that fits, and runs the learning-rate range test."""
