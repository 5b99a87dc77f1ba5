"""Scans and masks: reading, checking, grids and pictures."""
