"""What killed processes leave."""

from steelyard.files import atomic

NOBODY = 99_999_999
"""The number of a process that no system has."""


def unfinished(path, process=NOBODY):
    """Return the temporary name that a process of this machine uses for a file."""
    return path.with_name(f".{path.name}.{atomic._HOST}-{process}.part")
