"""Datasets on the node: the index, verification of downloaded files, and datasets on mounted volumes."""
