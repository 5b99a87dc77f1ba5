"""Training frameworks that a balancer fits into; each is optional, and a file of its own."""
