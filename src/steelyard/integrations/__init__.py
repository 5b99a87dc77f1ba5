"""Adapters to training frameworks; each is one file and needs its framework, and nothing imports one unasked."""
