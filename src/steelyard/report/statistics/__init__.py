"""Intervals, tests and sentences from tables of results."""
