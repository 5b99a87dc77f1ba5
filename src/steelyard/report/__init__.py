"""Tables, pictures and pages from run folders alone."""
