"""Step Functions: Standard state machines with the states that deployments use, and their executions."""
