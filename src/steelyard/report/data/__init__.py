"""Reading runs and experiment folders."""
