"""Account-level services: Price List, Service Quotas, Resource Groups and public SSM parameters."""
