"""What a domain is: all scans of a contrast, or those of one scanner or site.

`flair` is every FLAIR scan; `flair@VALUE` those of the subjects whose row of participants.tsv holds VALUE in the column
`scanner` (or `site`, in a table without one). Beside such siblings, plain `flair` is what is left: the FLAIR scans of
all subjects whom no sibling claims.
"""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from steelyard.errors import UserError
from steelyard.files.records import read_loose_rows, read_object
from steelyard.imaging.datasets.bids import SUFFIX, Dataset, Subject, bids_label

COLUMNS = ("scanner", "site")
"""The columns of participants.tsv that tell groups of subjects apart; the first that is there counts."""

TABLE = "participants.tsv"
"""Who is who in a dataset."""


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
            looked up in the datasets it was made from.
        domains: Their names.
        table_needed: Whether a table that is missing is a fault; if not, nobody's scanner is known then.

    Raises:
        UserError: The table that the domains need is missing or damaged.
    """
    path = _table(dataset.root) if any("@" in name for name in domains) else None
    if path is None and table_needed and any("@" in name for name in domains):
        raise UserError(f"{dataset.root / TABLE}: there is no such file; domains with @ need its column {COLUMNS[0]}.")
    groups = {} if path is None else _groups(path)
    return {subject.key: _domains_of(subject, groups.get(subject.label), domains) for subject in dataset.subjects}


def _domains_of(subject: Subject, group: str | None, domains: Sequence[str]) -> dict[str, str]:
    found = {}
    for contrast in SUFFIX:
        if getattr(subject, contrast) is None:
            continue
        own = f"{contrast}@{group}"
        name = own if group is not None and own in domains else contrast
        if name in domains:
            found[contrast] = name
    return found


def _table(root: Path) -> Path | None:
    return next((place / TABLE for place in (root, *_sources(root)) if (place / TABLE).is_file()), None)


def _groups(path: Path) -> dict[str, str]:
    """Return the scanner or site of each subject, by its label."""
    rows = read_loose_rows(path, delimiter="\t")
    column = next((name for name in COLUMNS if rows and name in rows[0]), None)
    if column is None or "participant_id" not in rows[0]:
        raise UserError(f"{path}: needs the columns participant_id and {' or '.join(COLUMNS)}.")
    named = {bids_label(row["participant_id"].removeprefix("sub-")): row[column] for row in rows}
    return {label: value for label, value in named.items() if value and value != "n/a"}


def _sources(root: Path) -> list[Path]:
    """Return the local datasets that derivatives say they were made from."""
    links = read_object(root / "dataset_description.json").get("DatasetLinks")
    if not isinstance(links, dict):
        return []
    return [root / unquote(link) for link in links.values() if isinstance(link, str) and "://" not in link]
