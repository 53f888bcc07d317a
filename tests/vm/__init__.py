"""One real machine image: a Debian guest with cloud-init that boots our user data, beside `make test`."""
