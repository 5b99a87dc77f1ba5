"""The counts of a campaign as a table for the documentation."""

from collections.abc import Mapping
from typing import Any

MARK = "campaign"
"""Marks the place for the table on the page."""

TITLES = {
    "headers": "mutated NIfTI files, read by the readers and by `predict` and `preprocess`",
    "records": "damaged records, odd settings, names, links and output folders, through every command",
    "kills": "commands ended at a change of their folder, run again, compared byte for byte",
    "library": "random models, optimizers and batches through the balancer",
}


def as_markdown(counts: Mapping[str, Any]) -> str:
    """Return a table of the parts and one of their kinds of cases.

    Args:
        counts: What `--out` writes.
    """
    lines = [
        f"Seed {counts['seed']}.\n",
        "| part | what is tried | cases | findings |",
        "| --- | --- | ---: | ---: |",
    ]
    parts = [(name, counts["parts"][name]) for name in TITLES if name in counts["parts"]]
    for name, part in parts:
        lines.append(f"| {name} | {TITLES[name]} | {part['cases']} | {part['findings']} |")
    lines.append("")
    for name, part in parts:
        kinds = ", ".join(f"{number} {kind}" for kind, number in part["kinds"].items())
        lines.append(f"- **{name}**: {kinds}.")
    return "\n".join(lines) + "\n"
