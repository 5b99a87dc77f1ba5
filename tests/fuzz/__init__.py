"""The campaign: hostile files, kills and random uses, from a seed; `python -m fuzz` with `tests` on the path."""
