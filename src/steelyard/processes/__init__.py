"""Child processes, signals and parallel work."""
