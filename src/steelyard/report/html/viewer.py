"""A subject's volumes as pictures of a page: slices side by side in one JPEG, masks as bits in a PNG."""

from base64 import b64encode
from io import BytesIO
from math import ceil, isnan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from steelyard.imaging.datasets.domains import contrast_of
from steelyard.imaging.scans.masks import Mask
from steelyard.imaging.scans.volumes import canonical
from steelyard.report.data.names import domain_title
from steelyard.report.data.predictions import SubjectPredictions

_CONTRASTS = ("flair", "t1")
_QUALITY = 84  # of JPEG; above it files grow without a visible gain
_STEP = 32  # between two values of a mask picture, so that small changes of colour in a browser do no harm


def pack_subject(predictions: SubjectPredictions) -> dict[str, Any]:
    """Return what the page's viewer needs, in types that JSON has.

    A mask picture holds 32 times the sum of 1 for the manual mask, 2 for what is found on FLAIR and 4 for what is found
    on T1.
    """
    size = [edge.stop - edge.start for edge in predictions.box]
    manual = _manual_mask(predictions)
    mask_bits = {method: _mask_bits(predictions, method, manual) for method in predictions.masks}
    lesion = manual
    if lesion is None:
        lesion = next(iter(mask_bits.values())) > 1  # what the first method finds
    voxels_per_slice = lesion.sum(axis=(0, 1))
    columns = ceil(sqrt(size[2]))
    scans = {}
    for contrast in predictions.volumes.scans:
        scans[domain_title(contrast)] = _url(_mosaic(predictions.grey(contrast), columns), "jpeg")
    return {
        "name": predictions.key,
        "size": size,
        "columns": columns,
        "aspect": predictions.spacing[1] / predictions.spacing[0],
        "start": int(np.argmax(voxels_per_slice)),
        "profile": voxels_per_slice.astype(int).tolist(),
        "hasManual": manual is not None,
        "scans": scans,
        "masks": {method: _url(_mosaic(bits * _STEP, columns), "png") for method, bits in mask_bits.items()},
        "scores": {method: _scores(predictions, method) for method in mask_bits},
    }


def _manual_mask(predictions: SubjectPredictions) -> Mask | None:
    if predictions.volumes.wmh is None:
        return None
    mask: Mask = canonical(predictions.volumes.wmh).voxels[predictions.box].astype(bool)
    return mask


def _mask_bits(predictions: SubjectPredictions, method: str, manual: Mask | None) -> NDArray[np.uint8]:
    """Return one volume with a bit for the manual mask and for what is found on each contrast."""
    bits = np.zeros([edge.stop - edge.start for edge in predictions.box], dtype=np.uint8)
    if manual is not None:
        bits[manual] = 1
    for domain, mask in predictions.masks[method].items():
        bits[mask[predictions.box]] |= 2 << _CONTRASTS.index(contrast_of(domain))
    return bits


def _mosaic(volume: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Return axial slices in rows of so many, lowest first; anterior is up, the subject's right is on the right."""
    planes = volume[:, ::-1].transpose(2, 1, 0)
    missing = -len(planes) % columns
    filled = np.concatenate([planes, np.zeros((missing, *planes.shape[1:]), dtype=np.uint8)])
    rows = filled.reshape(-1, columns, *planes.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(-1, columns * planes.shape[2]))


def _url(picture: NDArray[np.uint8], kind: str) -> str:
    """Return a picture as a data URL."""
    settings: dict[str, Any] = {"optimize": True}
    if kind == "jpeg":
        settings = {"quality": _QUALITY}
    content = BytesIO()
    Image.fromarray(picture).save(content, format=kind.upper(), **settings)
    return f"data:image/{kind};base64,{b64encode(content.getvalue()).decode()}"


def _scores(predictions: SubjectPredictions, method: str) -> dict[str, float | None]:
    """Return the Dice of each domain, as metrics.csv has it; none where it is not defined."""
    scores: dict[str, float | None] = {}
    for domain in predictions.masks[method]:
        score = predictions.runs[method].score(predictions.key, domain)
        scores[domain_title(domain)] = None if isnan(score) else round(score, 3)
    return scores
