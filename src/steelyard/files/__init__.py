"""Files that are written whole or not at all, and records that are checked when read."""
