"""Small problems with several domains, plain and spoiled, on which methods are compared."""
