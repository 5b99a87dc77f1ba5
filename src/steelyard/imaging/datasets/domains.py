"""What a domain is: all scans of a contrast, or those of one scanner or site.

`flair` is every FLAIR scan; `flair@VALUE` those of the subjects whose row of participants.tsv holds VALUE in the column
`scanner` (or `site`, in a table without one). Beside such siblings, plain `flair` is what is left: the FLAIR scans of
all subjects of no sibling.
"""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from steelyard.errors import UserError
from steelyard.files.records import read_loose_rows, read_object
from steelyard.imaging.datasets.bids import SUFFIX
from steelyard.imaging.datasets.subjects import Dataset, Subject, bids_label

COLUMNS = ("scanner", "site")
"""The columns of participants.tsv that separate groups of subjects; the first that is there counts."""

TABLE = "participants.tsv"
"""The table of a dataset's subjects."""


def contrast_of(domain: str) -> str:
    """Return the contrast of a domain.

    >>> contrast_of("flair@standard-3t"), contrast_of("t1")
    ('flair', 't1')
    """
    return domain.partition("@")[0]


def assign_domains(dataset: Dataset, domains: Sequence[str], *, table_needed: bool = True) -> dict[str, dict[str, str]]:
    """Return, for each subject, the domain that each of its scans belongs to: contrast to domain.

    Args:
        dataset: Its participants.tsv is read only if some domain has an `@`; a dataset of derivatives without one is
            looked up in the datasets it was derived from.
        domains: Their names.
        table_needed: Whether a missing table is a fault; if not, nobody's scanner is known then.

    Raises:
        UserError: The table that the domains need is missing or damaged.
    """
    groups: dict[str, str] = {}
    if any("@" in name for name in domains):
        table = _find_table(dataset.root)
        if table is not None:
            groups = _read_groups(table)
        elif table_needed:
            missing = dataset.root / TABLE
            raise UserError(f"{missing}: there is no such file; domains with @ need its column {COLUMNS[0]}.")
    return {subject.key: _domains_of(subject, groups.get(subject.label), domains) for subject in dataset.subjects}


def _domains_of(subject: Subject, group: str | None, domains: Sequence[str]) -> dict[str, str]:
    """Return the domain of each scan that belongs to one, by contrast."""
    assigned = {}
    for contrast in SUFFIX:
        if getattr(subject, contrast) is None:
            continue
        of_group = f"{contrast}@{group}"
        if group is not None and of_group in domains:
            assigned[contrast] = of_group
        elif contrast in domains:
            assigned[contrast] = contrast
    return assigned


def _find_table(root: Path) -> Path | None:
    for folder in (root, *_sources(root)):
        table = folder / TABLE
        if table.is_file():
            return table
    return None


def _read_groups(path: Path) -> dict[str, str]:
    """Return the scanner or site of each subject, by its label."""
    rows = read_loose_rows(path, delimiter="\t")
    header = rows[0] if rows else {}
    column = next((name for name in COLUMNS if name in header), None)
    if column is None or "participant_id" not in header:
        raise UserError(f"{path}: needs the columns participant_id and {' or '.join(COLUMNS)}.")
    groups: dict[str, str] = {}
    for row in rows:
        label = bids_label(row["participant_id"].removeprefix("sub-"))
        groups[label] = row[column]
    return {label: group for label, group in groups.items() if group not in ("", "n/a")}


def _sources(root: Path) -> list[Path]:
    """Return the local datasets that derivatives say they were derived from."""
    links = read_object(root / "dataset_description.json").get("DatasetLinks")
    if not isinstance(links, dict):
        return []
    return [root / unquote(link) for link in links.values() if isinstance(link, str) and "://" not in link]
