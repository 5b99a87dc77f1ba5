"""A subject's volumes as pictures that a page can hold: slices side by side in one JPEG, masks as bits in a PNG."""

from base64 import b64encode
from io import BytesIO
from math import ceil, isnan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from steelyard.imaging.datasets.domains import contrast_of
from steelyard.imaging.scans.volumes import canonical
from steelyard.report.data.predictions import SubjectPredictions
from steelyard.report.figures.plate import titled

_CONTRASTS = ("flair", "t1")
_QUALITY = 84  # of JPEG; beyond it sizes grow faster than what is seen
_STEP = 32  # between two values of a mask picture, so that nothing a browser does to colours confuses them


def pack_subject(shown: SubjectPredictions) -> dict[str, Any]:
    """Return what the page's viewer needs, in types that JSON has.

    A mask picture holds 32 times the sum of 1 for the manual mask, 2 for what is found on FLAIR and 4 for what is found
    on T1.
    """
    truth = shown.volumes.wmh
    manual = canonical(truth).voxels[shown.box].astype(bool) if truth is not None else None
    shape = tuple(edge.stop - edge.start for edge in shown.box)
    empty = np.zeros(shape, dtype=bool)
    layers = {}
    for method, found in shown.masks.items():
        bits = (manual if manual is not None else empty).astype(np.uint8)
        for domain, mask in found.items():
            bits[mask[shown.box]] |= 2 << _CONTRASTS.index(contrast_of(domain))
        layers[method] = bits
    columns = ceil(sqrt(shape[2]))
    guide = manual if manual is not None else next(iter(layers.values())) > 1
    profile = guide.sum(axis=(0, 1))
    return {
        "name": shown.key,
        "size": [shape[0], shape[1], shape[2]],
        "columns": columns,
        "aspect": shown.spacing[1] / shown.spacing[0],
        "start": int(np.argmax(profile)),
        "profile": [int(count) for count in profile],
        "hasManual": manual is not None,
        "scans": {titled(name): _url(_mosaic(shown.grey(name), columns), "jpeg") for name in shown.volumes.scans},
        "masks": {method: _url(_mosaic(bits * _STEP, columns), "png") for method, bits in layers.items()},
        "scores": {method: _scores(shown, method) for method in layers},
    }


def _mosaic(volume: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Return axial slices in rows of so many, lowest first; anterior is up, the subject's right is on the right."""
    planes = volume[:, ::-1].transpose(2, 1, 0)
    missing = -len(planes) % columns
    filled = np.concatenate([planes, np.zeros((missing, *planes.shape[1:]), dtype=np.uint8)])
    rows = filled.reshape(-1, columns, *planes.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(-1, columns * planes.shape[2]))


def _url(picture: NDArray[np.uint8], kind: str) -> str:
    packed = BytesIO()
    settings: dict[str, Any] = {"quality": _QUALITY} if kind == "jpeg" else {"optimize": True}
    Image.fromarray(picture).save(packed, format=kind.upper(), **settings)
    return f"data:image/{kind};base64,{b64encode(packed.getvalue()).decode()}"


def _scores(shown: SubjectPredictions, method: str) -> dict[str, float | None]:
    """Return the Dice of each domain, as metrics.csv has it."""
    run = shown.runs[method]
    held = {domain: run.score(shown.key, domain) for domain in shown.masks[method]}
    return {titled(domain): None if isnan(score) else round(score, 3) for domain, score in held.items()}
