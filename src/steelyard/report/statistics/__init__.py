"""Intervals, tests and findings from results, and numbers measured from runs."""
