"""How well a segmentation agrees with a manual one: voxel by voxel, by its surface, by its lesions.

`docs/metrics.md` has the definitions beside each other, with what an empty mask gives.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage
from scipy.spatial import KDTree
from sklearn.metrics import average_precision_score, roc_auc_score

from steelyard.imaging.anatomy.lesions import label_lesions

Mask = NDArray[np.bool_]
Spacing = tuple[float, float, float]

_PERCENTILE = 95.0  # of the surface distances, so that a few stray voxels do not decide


@dataclass(frozen=True, kw_only=True)
class VoxelMetrics:
    """Agreement voxel by voxel; TP, FP, FN and TN are the four counts after thresholding.

    Args:
        dsc: Dice similarity coefficient, 2 TP / (2 TP + FP + FN); 1 if both masks are empty, 0 if one is.
        auc: Area under the ROC curve of the probabilities; NaN if the truth is empty or full.
        average_precision: Mean precision over the steps of recall; NaN if the truth is empty or full.
        ppv: Positive predictive value, TP / (TP + FP); NaN if no lesion is predicted.
        tpr: True positive rate, TP / (TP + FN); NaN if the truth is empty.
        fpr: False positive rate, FP / (FP + TN); NaN if the truth is full.
        accuracy: (TP + TN) / all.
        brier: Mean squared difference between probability and truth.
    """

    dsc: float
    auc: float
    average_precision: float
    ppv: float
    tpr: float
    fpr: float
    accuracy: float
    brier: float


@dataclass(frozen=True, kw_only=True)
class VolumeMetrics:
    """Agreement of two masks by surface, volume and lesions.

    Args:
        hd95: 95 % Hausdorff distance in mm; 0 if both masks are empty, infinite if one is.
        volume_difference: |V predicted − V true| / V true in percent; with no true volume 0 if none is predicted,
            else infinite.
        lesion_recall: Share of the true lesions that contain a predicted voxel; NaN if there are none.
        lesion_precision: Share of the predicted lesions that contain a true voxel; NaN if there are none.
        lesion_f1: Harmonic mean of the two; 1 if there is no lesion in either mask, 0 if in one alone.
        predicted_ml: Volume of the predicted mask.
        true_ml: Volume of the true mask.
    """

    hd95: float
    volume_difference: float
    lesion_recall: float
    lesion_precision: float
    lesion_f1: float
    predicted_ml: float
    true_ml: float


def voxel_metrics(probabilities: ArrayLike, truth: ArrayLike, *, threshold: float = 0.5) -> VoxelMetrics:
    """Compare probabilities with a mask of the same shape.

    Args:
        probabilities: Of lesion, 0 to 1.
        truth: The manual mask, zeros and ones.
        threshold: A voxel counts as lesion if its probability is *greater*; exactly 0.5 is not a lesion.

    Raises:
        ValueError: Shapes differ, there is no voxel, or values are out of range.

    >>> measured = voxel_metrics([0.9, 0.6, 0.2, 0.1], [1, 0, 1, 0])
    >>> measured.dsc, measured.auc, measured.fpr
    (0.5, 0.75, 0.5)
    """
    scores, mask = np.asarray(probabilities), _mask("truth", truth)
    _check(scores, mask, threshold)
    scores, mask = scores.ravel(), mask.ravel()
    predicted = scores > threshold
    true_positives = int(np.count_nonzero(predicted & mask))
    false_positives = int(np.count_nonzero(predicted)) - true_positives
    positives = int(np.count_nonzero(mask))
    negatives = mask.size - positives
    false_negatives = positives - true_positives
    correct = true_positives + negatives - false_positives
    return VoxelMetrics(
        dsc=_dice(true_positives, 2 * true_positives + false_positives + false_negatives),
        auc=_ranking_score(roc_auc_score, mask, scores),
        average_precision=_ranking_score(average_precision_score, mask, scores),
        ppv=_share(true_positives, true_positives + false_positives),
        tpr=_share(true_positives, positives),
        fpr=_share(false_positives, negatives),
        accuracy=correct / mask.size,
        brier=float(np.mean(np.square(scores - mask, dtype=np.float64))),
    )


def volume_metrics(predicted: ArrayLike, truth: ArrayLike, *, spacing: Spacing) -> VolumeMetrics:
    """Compare two three-dimensional masks on one grid.

    The surface of a mask is its voxels with a face neighbour outside it; beyond the grid is outside. Each surface
    voxel has a distance to the nearest voxel of the other surface, centre to centre. `hd95` is the 95th percentile of
    these distances, interpolated linearly, in the direction in which it is larger. A lesion is a component connected
    by faces, edges or corners (26 neighbours), as in the WMH Segmentation Challenge (Kuijf et al., IEEE TMI 2019).

    Args:
        predicted: Zeros and ones.
        truth: The manual mask, zeros and ones.
        spacing: Edges of a voxel in mm.

    Raises:
        ValueError: The masks are not three-dimensional, differ in shape or hold other values, or the spacing is bad.

    >>> truth = np.zeros((9, 9, 9))
    >>> truth[2:5, 2:5, 2:5] = 1
    >>> volume_metrics(np.roll(truth, 2, axis=0), truth, spacing=(1.0, 1.0, 3.0)).hd95
    2.0
    """
    mask, true_mask = _mask("predicted", predicted), _mask("truth", truth)
    if mask.ndim != 3 or mask.shape != true_mask.shape:
        raise ValueError(
            f"two three-dimensional masks of one shape are needed; got {mask.shape} and {true_mask.shape}."
        )
    if len(spacing) != 3 or not all(math.isfinite(edge) and edge > 0 for edge in spacing):
        raise ValueError(f"spacing must be three positive lengths in mm; got {spacing}.")
    voxel_ml = math.prod(spacing) / 1000  # 1 ml is 1000 mm³
    predicted_ml = np.count_nonzero(mask) * voxel_ml
    true_ml = np.count_nonzero(true_mask) * voxel_ml
    recall, precision = _share_of_lesions_hit(true_mask, mask), _share_of_lesions_hit(mask, true_mask)
    return VolumeMetrics(
        hd95=_surface_distance(mask, true_mask, spacing),
        volume_difference=_volume_difference(predicted_ml, true_ml),
        lesion_recall=recall,
        lesion_precision=precision,
        lesion_f1=_f1(recall, precision),
        predicted_ml=predicted_ml,
        true_ml=true_ml,
    )


def _mask(name: str, values: ArrayLike) -> Mask:
    array = np.asarray(values)
    mask = array.astype(bool)
    if array.dtype != bool and not np.array_equal(array, mask):
        raise ValueError(f"{name} must hold zeros and ones alone.")
    return mask


def _check(scores: NDArray[Any], mask: Mask, threshold: float) -> None:
    if scores.shape != mask.shape or not scores.size:
        raise ValueError(f"probabilities and truth must have one shape, not empty; got {scores.shape}, {mask.shape}.")
    if not (scores.min() >= 0 and scores.max() <= 1):  # NaN fails either
        raise ValueError(f"probabilities must lie within 0 to 1; got {scores.min():g} to {scores.max():g}.")
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be at least 0 and below 1; got {threshold}.")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _dice(true_positives: int, voxels: int) -> float:
    """Return Dice from the voxels of both masks together; two empty masks agree."""
    return 2 * true_positives / voxels if voxels else 1.0


def _ranking_score(score: Any, mask: Mask, scores: NDArray[Any]) -> float:
    """Return a score of how the probabilities rank the voxels; NaN if all voxels are lesion, or none is."""
    if mask.all() or not mask.any():
        return math.nan
    return float(score(mask, scores))


def _volume_difference(predicted: float, true: float) -> float:
    """Return the absolute difference in per cent of the true volume."""
    if true:
        return abs(predicted - true) / true * 100
    return math.inf if predicted else 0.0


def _share_of_lesions_hit(mask: Mask, other: Mask) -> float:
    """Return the share of a mask's lesions that contain a voxel of the other mask; NaN if it has no lesion."""
    labels, count = label_lesions(mask)
    return _share(len(np.unique(labels[mask & other])), count)


def _f1(recall: float, precision: float) -> float:
    if math.isnan(recall) and math.isnan(precision):
        return 1.0
    if math.isnan(recall) or math.isnan(precision) or recall + precision == 0:
        return 0.0
    return 2 * recall * precision / (recall + precision)


def _surface_distance(mask: Mask, true_mask: Mask, spacing: Spacing) -> float:
    """Return the 95 % Hausdorff distance in mm."""
    if not mask.any() and not true_mask.any():
        return 0.0
    if not mask.any() or not true_mask.any():
        return math.inf
    surface, true_surface = _surface_points(mask, spacing), _surface_points(true_mask, spacing)
    return max(_directed_distance(surface, true_surface), _directed_distance(true_surface, surface))


def _surface_points(mask: Mask, spacing: Spacing) -> NDArray[np.float64]:
    """Return the centres of a mask's surface voxels in mm, (n, 3)."""
    surface: Mask = mask & ~ndimage.binary_erosion(mask)
    edges: NDArray[np.float64] = np.asarray(spacing, dtype=np.float64)
    return np.multiply(np.argwhere(surface), edges, dtype=np.float64)


def _directed_distance(points: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the 95th percentile of the distances from each point to the nearest of the others."""
    distances, _ = KDTree(others).query(points)
    return float(np.percentile(distances, _PERCENTILE))
