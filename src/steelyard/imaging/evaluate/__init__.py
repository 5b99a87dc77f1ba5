"""Metrics, and the scores of a run's test subjects."""
