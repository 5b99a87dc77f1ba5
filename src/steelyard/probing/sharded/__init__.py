"""Measurements on models that `fully_shard` has divided over ranks."""
