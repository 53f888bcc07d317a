"""The effects of a change on nodes, data, permissions, network access and costs."""
