"""A test with a real machine image: a Debian guest with cloud-init boots the user data of a deployment."""
