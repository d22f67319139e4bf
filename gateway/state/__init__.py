"""What outlives one request: a private redis-server where none is given, and the store over it."""
