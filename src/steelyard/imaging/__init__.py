"""The application: white matter hyperintensities from a FLAIR or a T1 scan."""
