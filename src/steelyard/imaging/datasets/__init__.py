"""Datasets on disk: BIDS, plain folders, derivatives, domains."""
