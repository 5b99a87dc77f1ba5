"""Quality of preprocessed subjects: measures, outliers, and the page that shows outliers first."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.files.pages import render
from steelyard.imaging.preprocess.pipeline import PreparedSubject
from steelyard.imaging.preprocess.register import dice

OUTLIER_DEVIATIONS = 3.5
"""Robust standard deviations from the cohort's median beyond which a value is an outlier."""

_SMALLEST_COHORT = 6  # subjects; the median of fewer says little
_BEYOND_LIMIT = 10.0  # the score of a value outside its limits; that of an outlier begins at 1

# By measure: the lowest and the highest value that need no remark, and the remark.
_LIMITS = {
    "brain_overlap": (0.95, 1.0, "the brains of T1w and FLAIR overlap by {:.3f} only"),
    "supplied_brain_dice": (0.9, 1.0, "the brain agrees with the supplied mask by {:.3f} only"),
    "information": (0.3, np.inf, "T1w and FLAIR share {:.2f} nats of information only"),
    "brain_ml": (900.0, 2000.0, "the brain holds {:.0f} ml"),
    "moved_mm": (0.0, 20.0, "T1w was moved by {:.1f} mm"),
    "t1_missing": (0.0, 0.005, "{:.1%} of the brain lies outside T1w's field of view; T1w is 0 there"),
    "flair_bias_sd": (0.0, 0.25, "FLAIR's bias field varies by {:.0%}"),
    "t1_bias_sd": (0.0, 0.25, "T1w's bias field varies by {:.0%}"),
}
# The measures that are compared with those of the other subjects, as a remark calls them.
_COMPARED = {
    "brain_ml": "brain volume",
    "moved_mm": "motion between T1w and FLAIR",
    "information": "mutual information of T1w and FLAIR",
    "brain_overlap": "overlap of the brains",
    "supplied_brain_dice": "agreement with the supplied brain mask",
    "flair_bias_sd": "bias field of FLAIR",
    "t1_bias_sd": "bias field of T1w",
    "flair_stripe_rank": "place of FLAIR's white stripe",
    "t1_stripe_rank": "place of T1w's white stripe",
}
# The columns of the page: measure, heading, format.
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
class QualityAssessment:
    """How far a subject or scan stands out from its cohort, and in what.

    Args:
        score: 0 for one like the others; the page shows the highest first.
        remarks: What to look at.
    """

    score: float
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class PageEntry:
    """One subject on the page.

    Args:
        key: Its name in the derivatives.
        name: Its name in the input.
        measures: Its measures of quality.
        picture: Its mosaic as JPEG.
        seconds: Duration of its processing.
    """

    key: str
    name: str
    measures: Mapping[str, float]
    picture: bytes
    seconds: float


def measure_quality(prepared: PreparedSubject) -> dict[str, float]:
    """Return the measures of a subject's quality, by name."""
    inside = prepared.brain.voxels
    measures = {"brain_ml": float(inside.sum()) * prepared.brain.voxel_ml}
    if prepared.alignment is not None:
        measures["moved_mm"] = prepared.alignment.moved_mm
        if prepared.alignment.information is not None:
            measures["information"] = prepared.alignment.information
    if prepared.overlap is not None:
        measures["brain_overlap"] = prepared.overlap
    if prepared.t1_missing is not None:
        measures["t1_missing"] = prepared.t1_missing
    if "brain" in prepared.masks:
        measures["supplied_brain_dice"] = dice(inside, prepared.masks["brain"].voxels)
    if "wmh" in prepared.masks:
        measures["wmh_ml"] = float(prepared.masks["wmh"].voxels.sum()) * prepared.brain.voxel_ml
    for contrast, scan in prepared.scans.items():
        if scan.field is not None:
            measures[f"{contrast}_bias_sd"] = float(scan.field[inside].std())
        if scan.stripe is not None:
            values = scan.corrected.voxels[inside]
            measures[f"{contrast}_stripe_rank"] = float(np.mean(values < scan.stripe.mean))
    return measures


def assess_quality(cohort: Sequence[Mapping[str, float]]) -> list[QualityAssessment]:
    """Compare each subject's measures with fixed limits and, in cohorts of six and more, with the others'.

    >>> assess_quality([{"brain_ml": 1400.0}, {"brain_ml": 100.0}])[1].remarks
    ('the brain holds 100 ml',)
    """
    return [_assess_subject(measures, cohort) for measures in cohort]


def _assess_subject(measures: Mapping[str, float], cohort: Sequence[Mapping[str, float]]) -> QualityAssessment:
    remarks: list[str] = []
    score = 0.0
    for name, value in measures.items():
        low, high, remark = _LIMITS.get(name, (-np.inf, np.inf, ""))
        if not low <= value <= high:
            remarks.append(remark.format(value))
            score += _BEYOND_LIMIT
            continue
        deviations = robust_deviations(value, [subject[name] for subject in cohort if name in subject])
        if name in _COMPARED and deviations > OUTLIER_DEVIATIONS:
            remarks.append(f"{_COMPARED[name]} is unlike the others' ({value:.3g})")
            score += deviations / OUTLIER_DEVIATIONS
    return QualityAssessment(score, tuple(remarks))


def robust_deviations(value: float, values: Sequence[float]) -> float:
    """Return how many robust standard deviations a value lies from the median; 0 in cohorts of fewer than six."""
    if len(values) < _SMALLEST_COHORT:
        return 0.0
    median = float(np.median(values))
    # 1.4826 times the median absolute deviation is the standard deviation of normally distributed values.
    spread = 1.4826 * float(np.median(np.abs(np.array(values) - median)))
    spread = max(spread, 0.02 * abs(median), 1e-9)  # a cohort of nearly equal values has no outliers
    return abs(value - median) / spread


def render_page(entries: Sequence[PageEntry], *, failures: Sequence[str], notes: Sequence[str], facts: str) -> str:
    """Return one self-contained HTML page for the cohort: outliers first, then the rest by name."""
    assessments = assess_quality([entry.measures for entry in entries])
    ranked = sorted(zip(entries, assessments, strict=True), key=lambda pair: (-pair[1].score, pair[0].key))
    measured = {name for entry in entries for name in entry.measures}
    columns = [column for column in _COLUMNS if column[0] in measured]
    return render(
        "preprocessing",
        package=__package__,
        subjects=[_card(entry, assessment, columns) for entry, assessment in ranked],
        headings=[heading for _, heading, _ in columns],
        outliers=sum(bool(assessment.remarks) for assessment in assessments),
        failures=failures,
        notes=notes,
        facts=facts,
    )


def _card(entry: PageEntry, assessment: QualityAssessment, columns: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    cells = []
    for name, _, cell_format in columns:
        if name in entry.measures:
            cells.append(cell_format.format(entry.measures[name]))
        else:
            cells.append("–")
    return {
        "key": entry.key,
        "name": entry.name,
        "reasons": assessment.remarks,
        "cells": cells,
        "picture": b64encode(entry.picture).decode(),
        "seconds": f"{entry.seconds:.0f} s",
    }
