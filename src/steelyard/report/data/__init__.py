"""Reading runs, experiment folders and tables of results."""
