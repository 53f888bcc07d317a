"""Reviews a change: how a deploy affects resources, nodes, data, permissions, network and costs.

A review compares two sets of templates. `templates` reads templates from a synthesis, a git revision or CloudFormation.
`updates` compares resources, and `effects` derives findings. `review` combines them, and `report` and `formats` print
the result. None of these modules imports the CDK.
"""
