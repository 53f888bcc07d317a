"""The node program: boots a training node and supervises its trainers."""
