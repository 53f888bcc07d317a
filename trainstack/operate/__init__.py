"""Commands that create, change and remove a deployment or its run."""
