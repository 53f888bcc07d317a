"""The HTTP layer: server, addressing, signatures, chunked bodies and AWS wire protocols."""
