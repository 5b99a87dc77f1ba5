"""Tables, pictures and pages from run directories alone."""
