"""One self-contained HTML page for many scans: what to look at comes first."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steelyard.files.pages import render
from steelyard.imaging.datasets.bids import SUFFIX
from steelyard.imaging.predict.table import Row
from steelyard.imaging.preprocess.quality import (
    OUTLIER_DEVIATIONS,
    QualityAssessment,
    assess_quality,
    robust_deviations,
)

_SMALLEST_COHORT = 6  # scans; of fewer, the largest and the smallest volume need no remark
_LARGEST_SHARE = 0.08  # of the brain; lesions that fill more are rarely right


def render_page(rows: Sequence[Row], *, pictures: Mapping[str, bytes], failed: Sequence[Row], facts: str) -> str:
    """Return the page: failures, then scans that stand out, the largest and smallest volumes, then the rest by name."""
    assessments = _assess(rows)
    ranked = sorted(rows, key=lambda row: (-assessments[row.scan].score, row.scan))
    largest_ml = max((row.wmh_ml or 0.0 for row in rows), default=0.0)
    cards = []
    for row in ranked:
        cards.append(_card(row, assessments[row.scan].remarks, pictures[row.scan], largest_ml))
    return render(
        "prediction",
        package=__package__,
        cards=cards,
        failures=[f"{row.scan} ({row.source}): {row.problem}" for row in failed],
        outliers=sum(assessment.score >= 1 for assessment in assessments.values()),
        facts=facts,
    )


def _assess(rows: Sequence[Row]) -> dict[str, QualityAssessment]:
    """Return for each scan how far its brain and its lesions stand out from the others."""
    volumes = [row.wmh_ml or 0.0 for row in rows]
    brains = assess_quality([_brain_measures(row) for row in rows])
    assessments = {}
    for row, brain in zip(rows, brains, strict=True):
        score, remarks = brain.score, brain.remarks
        for points, remark in _volume_remarks(row, volumes):
            score += points
            remarks = (*remarks, remark)
        assessments[row.scan] = QualityAssessment(score, remarks)
    return assessments


def _brain_measures(row: Row) -> dict[str, float]:
    return {} if row.brain_ml is None else {"brain_ml": row.brain_ml}


def _volume_remarks(row: Row, volumes: Sequence[float]) -> list[tuple[float, str]]:
    """Return remarks on the volume of a scan's lesions, each with what it adds to the score."""
    volume = row.wmh_ml or 0.0
    remarks = []
    if not volume:
        remarks.append((10.0, "no lesion was found"))
    elif row.brain_ml and volume > _LARGEST_SHARE * row.brain_ml:
        remarks.append((10.0, f"lesions fill {volume / row.brain_ml:.0%} of the brain"))
    # Logarithms, because volumes range over several orders of magnitude.
    deviations = robust_deviations(float(np.log1p(volume)), [float(np.log1p(other)) for other in volumes])
    if deviations > OUTLIER_DEVIATIONS:
        remarks.append((deviations / OUTLIER_DEVIATIONS, "the volume is unlike the others'"))
    if len(volumes) >= _SMALLEST_COHORT:
        if volume == max(volumes):
            remarks.append((0.5, "the largest volume"))
        elif volume == min(volumes):
            remarks.append((0.5, "the smallest volume"))
    return remarks


def _card(row: Row, remarks: Sequence[str], picture: bytes, largest_ml: float) -> dict[str, Any]:
    bar_percent = "0"
    if largest_ml:
        bar_percent = f"{100 * (row.wmh_ml or 0.0) / largest_ml:.1f}"
    return {
        "key": row.scan,
        "name": row.scan.split("_space-")[0],
        "contrast": SUFFIX.get(row.contrast, "scan"),
        "source": row.source,
        "volume": _millilitres(row.wmh_ml),
        "share": bar_percent,
        "count": row.lesions,
        "near": _millilitres(row.periventricular_ml),
        "deep": _millilitres(row.deep_ml),
        "brain": _millilitres(row.brain_ml, decimals=0),
        "steps": f"brain: {row.brain}, bias field: {row.bias}, intensities: {row.normalise}",
        "model": f"{row.model} {row.weights}, threshold {row.threshold:g}, lesions from {row.smallest_ml:g} ml",
        "reasons": remarks,
        "picture": b64encode(picture).decode(),
    }


def _millilitres(value: float | None, *, decimals: int = 2) -> str:
    return "–" if value is None else f"{value:.{decimals}f}"
