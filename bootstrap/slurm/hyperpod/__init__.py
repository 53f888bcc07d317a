"""The life-cycle script of HyperPod's nodes: checks that a node can train, before it accepts jobs.

The modules run with the image's Python (3.9 or newer) as root. They need no packages and no internet access.
"""
