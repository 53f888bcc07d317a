"""The function that runs a pipeline's members in the deployment's slots, for the state machine of WorkflowStack."""
