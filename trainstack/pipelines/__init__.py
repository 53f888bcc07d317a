"""The commands `pipeline run`, `status`, `graph`, `stop`, `results` and `redrive`."""
