"""One self-contained HTML page for many scans, what to look at first."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steelyard.files.pages import render
from steelyard.imaging.datasets.bids import SUFFIX
from steelyard.imaging.predict.table import Row
from steelyard.imaging.preprocess.quality import DEVIATIONS, deviations, judge

_ENOUGH = 6  # scans, below which the largest and the smallest need no word
_SHARE = 0.08  # of the brain; more is rarely true


def render_page(rows: Sequence[Row], *, pictures: Mapping[str, bytes], failed: Sequence[Row], facts: str) -> str:
    """Return the page: failures, then scans that stand out, the largest and smallest volumes, then the rest by name."""
    told = _remarks(rows)
    ranked = sorted(rows, key=lambda row: (-told[row.scan][0], row.scan))
    largest = max((row.wmh_ml or 0.0 for row in rows), default=0.0)
    return render(
        "prediction",
        package=__package__,
        cards=[_card(row, told[row.scan][1], pictures[row.scan], largest) for row in ranked],
        failures=[f"{row.scan} ({row.source}): {row.problem}" for row in failed],
        outliers=sum(score >= 1 for score, _ in told.values()),
        facts=facts,
    )


def _remarks(rows: Sequence[Row]) -> dict[str, tuple[float, list[str]]]:
    """Return for each scan how far it stands out, and in what."""
    volumes = [row.wmh_ml or 0.0 for row in rows]
    logarithms = [float(np.log1p(volume)) for volume in volumes]
    told: dict[str, tuple[float, list[str]]] = {}
    for row, verdict, volume in zip(rows, judge([_brain(row) for row in rows]), volumes, strict=True):
        score, reasons = verdict.score, list(verdict.reasons)
        away = deviations(float(np.log1p(volume)), logarithms)
        if not volume:
            score, reasons = score + 10, [*reasons, "no lesion was found"]
        elif row.brain_ml and volume > _SHARE * row.brain_ml:
            score, reasons = score + 10, [*reasons, f"lesions fill {volume / row.brain_ml:.0%} of the brain"]
        if away > DEVIATIONS:
            score, reasons = score + away / DEVIATIONS, [*reasons, "the volume is unlike the others'"]
        if len(rows) >= _ENOUGH and volume in (min(volumes), max(volumes)):
            most = volume == max(volumes)
            score, reasons = score + 0.5, [*reasons, "the largest volume" if most else "the smallest volume"]
        told[row.scan] = (score, reasons)
    return told


def _brain(row: Row) -> dict[str, float]:
    return {} if row.brain_ml is None else {"brain_ml": row.brain_ml}


def _card(row: Row, reasons: Sequence[str], picture: bytes, largest: float) -> dict[str, Any]:
    return {
        "key": row.scan,
        "name": row.scan.split("_space-")[0],
        "contrast": SUFFIX.get(row.contrast, "scan"),
        "source": row.source,
        "volume": _ml(row.wmh_ml),
        "share": f"{100 * (row.wmh_ml or 0.0) / largest:.1f}" if largest else "0",
        "count": row.lesions,
        "near": _ml(row.periventricular_ml),
        "deep": _ml(row.deep_ml),
        "brain": "–" if row.brain_ml is None else f"{row.brain_ml:.0f}",
        "steps": f"brain: {row.brain}, bias field: {row.bias}, intensities: {row.normalise}",
        "model": f"{row.model} {row.weights}, threshold {row.threshold:g}, lesions from {row.smallest_ml:g} ml",
        "reasons": reasons,
        "picture": b64encode(picture).decode(),
    }


def _ml(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
