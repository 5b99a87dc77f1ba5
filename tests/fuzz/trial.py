"""One command on one bad input, and what must survive it."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

Words = tuple[str | Path, ...]

TREASURE = b"written by a person, irreplaceable"
"""How the files of a person's begin."""


@dataclass
class Trial:
    """One command on one bad input.

    Args:
        words: The command.
        change: What is bad, in words.
        named: A failure must name one of these.
        sources: Files that must be as they were afterwards.
        treasures: Files of a person's; their bytes must still be somewhere in the case's folder.
        outside: A folder in which nothing may appear.
        out: Must be free of results if the command fails.
        fresh: Run it in a process that shares nothing with others.
    """

    words: Words
    change: str
    named: tuple[str, ...] = ()
    sources: dict[Path, bytes] = field(default_factory=dict)
    treasures: dict[Path, bytes] = field(default_factory=dict)
    outside: Path | None = None
    out: Path | None = None
    fresh: bool = False


def copy(source: Path, target: Path) -> Path:
    """Copy a folder and return the copy."""
    shutil.copytree(source, target)
    return target


def bury(out: Path) -> dict[Path, bytes]:
    """Put things of a person's into a folder of results, under names like ours; return them."""
    if not out.is_dir():
        return {}
    names = (
        "notes.txt",
        "figures/mine.jpg",
        "sub-0/anat/sub-0_space-FLAIR_desc-manual_label-WMH_mask.nii.gz",
        "sub-9/anat/sub-9_space-FLAIR_label-WMH_mask.nii.gz",
    )
    treasures = {}
    for number, name in enumerate(names):
        folder = (out / name).parent
        if folder.is_dir() or (name.startswith("sub-9") and (out / "sub-0").is_dir()):
            folder.mkdir(parents=True, exist_ok=True)
            treasures[out / name] = TREASURE + bytes([number])
            (out / name).write_bytes(treasures[out / name])
    return treasures
