"""One self-contained HTML page for the cohort, outliers first."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.files.pages import render
from steelyard.imaging.preprocess.quality import Verdict, judge

_COLUMNS = (
    ("moved_mm", "T1w moved", "{:.2f} mm"),
    ("brain_overlap", "T1w/FLAIR brains, Dice", "{:.3f}"),
    ("supplied_brain_dice", "supplied brain, Dice", "{:.3f}"),
    ("brain_ml", "brain", "{:.0f} ml"),
    ("wmh_ml", "lesions", "{:.1f} ml"),
    ("flair_bias_sd", "FLAIR bias", "{:.1%}"),
    ("t1_bias_sd", "T1w bias", "{:.1%}"),
)


@dataclass(frozen=True)
class Entry:
    """One subject on the page.

    Args:
        key: Its name in the derivatives.
        name: Its name in the input.
        measures: Its measures of quality.
        picture: Its mosaic as JPEG.
        seconds: What processing took.
    """

    key: str
    name: str
    measures: Mapping[str, float]
    picture: bytes
    seconds: float


def render_page(entries: Sequence[Entry], *, failures: Sequence[str], notes: Sequence[str], facts: str) -> str:
    """Return the page; subjects that stand out come first, then the rest by name."""
    verdicts = judge([entry.measures for entry in entries])
    ranked = sorted(zip(entries, verdicts, strict=True), key=lambda pair: (-pair[1].score, pair[0].key))
    columns = [column for column in _COLUMNS if any(column[0] in entry.measures for entry in entries)]
    return render(
        "preprocessing",
        package=__package__,
        subjects=[_card(entry, verdict, columns) for entry, verdict in ranked],
        headings=[heading for _, heading, _ in columns],
        outliers=sum(bool(verdict.reasons) for verdict in verdicts),
        failures=failures,
        notes=notes,
        facts=facts,
    )


def _card(entry: Entry, verdict: Verdict, columns: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    return {
        "key": entry.key,
        "name": entry.name,
        "reasons": verdict.reasons,
        "cells": [form.format(entry.measures[name]) if name in entry.measures else "–" for name, _, form in columns],
        "picture": b64encode(entry.picture).decode(),
        "seconds": f"{entry.seconds:.0f} s",
    }
