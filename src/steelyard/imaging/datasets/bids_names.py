"""The names of BIDS files: entities such as `run-2`, joined by underscores, then a suffix such as `T1w`."""

from collections.abc import Sequence

BIDS_VERSION = "1.10.0"
"""The version of BIDS that written datasets follow."""

NIFTI_ENDINGS = (".nii", ".nii.gz")
"""How the names of scans and masks end."""


def stem(name: str) -> str:
    """Return a file's name without `.nii` or `.nii.gz`."""
    return name.removesuffix(".gz").removesuffix(".nii")


def last_part(name: str) -> str:
    """Return what follows the last underscore of a file's name: the suffix, if it is a BIDS name.

    >>> last_part("sub-1_run-2_T1w.nii.gz")
    'T1w'
    """
    return stem(name).rsplit("_", 1)[-1]


def loose_entities(parts: Sequence[str]) -> dict[str, str]:
    """Return the entities among the parts of a name; other parts are ignored.

    >>> loose_entities(["sub-1", "odd", "T1w"])
    {'sub': '1'}
    """
    entities = {}
    for part in parts:
        key, dash, value = part.partition("-")
        if dash:
            entities[key] = value
    return entities


def strict_entities(parts: Sequence[str]) -> dict[str, str]:
    """Return the entities of a name; none if a part of it is not an entity, or one is there twice.

    >>> strict_entities(["sub-1", "run-2"]), strict_entities(["sub-1", "odd"])
    ({'sub': '1', 'run': '2'}, {})
    """
    entities = loose_entities(parts)
    has_every_part = len(entities) == len(parts) and all(entities.values())
    return entities if has_every_part else {}
