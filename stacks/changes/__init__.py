"""What a deploy would do, told from two sets of templates: resources, nodes, data, rights, network, costs.

Pure but for `sources`, which fetches the templates to compare; the CDK is not imported anywhere here.
"""
