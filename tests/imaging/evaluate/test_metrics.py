import math
import time
from dataclasses import asdict

import numpy as np
import pytest
import SimpleITK as sitk
import sklearn.metrics
import torch
from scipy import ndimage

from steelyard.imaging.evaluate.metrics import volume_metrics, voxel_metrics

SPACINGS = [(1.0, 1.0, 1.0), (0.9, 0.9, 7.0), (1.2, 0.8, 3.0)]


def blobs(seed, *, shape=(40, 36, 14), share=0.03):
    """Lesions of many sizes, some at the border of the grid."""
    noise = ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal(shape), 1.3)
    return noise > np.quantile(noise, 1 - share)


def pair(seed):
    """Two masks that agree in part."""
    both, one, other = (blobs(3 * seed + offset, share=0.02) for offset in range(3))
    return both | one, both | other


@pytest.mark.parametrize("seed", range(4))
def test_voxel_metrics_are_scikit_learns(seed):
    random = np.random.default_rng(seed)
    truth = random.random((7, 8, 9)) < 0.2
    scores = np.round(np.clip(0.4 * truth + random.random(truth.shape) * 0.7, 0, 1), 1)  # with ties, also at 0.5
    measured = voxel_metrics(scores, truth)
    flat, said = truth.ravel(), scores.ravel() > 0.5
    (tn, fp), _ = sklearn.metrics.confusion_matrix(flat, said)
    assert asdict(measured) == pytest.approx(
        {
            "dsc": sklearn.metrics.f1_score(flat, said),
            "auc": sklearn.metrics.roc_auc_score(flat, scores.ravel()),
            "average_precision": sklearn.metrics.average_precision_score(flat, scores.ravel()),
            "ppv": sklearn.metrics.precision_score(flat, said),
            "tpr": sklearn.metrics.recall_score(flat, said),
            "fpr": fp / (fp + tn),
            "accuracy": sklearn.metrics.accuracy_score(flat, said),
            "brier": sklearn.metrics.brier_score_loss(flat, scores.ravel()),
        },
        abs=1e-12,
    )


def test_voxel_metrics_by_hand():
    measured = voxel_metrics([0.9, 0.8, 0.7, 0.3, 0.2, 0.1], [1, 0, 1, 1, 0, 0])
    assert asdict(measured) == pytest.approx(
        {
            "dsc": 2 / 3,
            "auc": 7 / 9,
            "average_precision": (1 / 1 + 2 / 3 + 3 / 4) / 3,
            "ppv": 2 / 3,
            "tpr": 2 / 3,
            "fpr": 1 / 3,
            "accuracy": 4 / 6,
            "brier": (0.01 + 0.64 + 0.09 + 0.49 + 0.04 + 0.01) / 6,
        }
    )


def test_the_threshold_itself_is_no_lesion():
    truth = [1, 1, 0]
    assert voxel_metrics([0.5, 0.6, 0.1], truth).tpr == 0.5
    assert voxel_metrics([0.5, 0.6, 0.1], truth, threshold=0.4).tpr == 1.0
    assert voxel_metrics([0.0, 0.6, 0.0], truth, threshold=0.0).tpr == 0.5


def metric_pair(scores, truth):
    measured = voxel_metrics(np.asarray(scores, dtype=float), np.asarray(truth))
    return {name: value for name, value in asdict(measured).items() if not math.isnan(value)}


def test_voxel_metrics_of_empty_and_full_masks():
    assert metric_pair([0.1, 0.1], [0, 0]) == pytest.approx({"dsc": 1, "fpr": 0, "accuracy": 1, "brier": 0.01})
    nothing_there = metric_pair([0.9, 0.1], [0, 0])
    assert nothing_there == pytest.approx({"dsc": 0, "ppv": 0, "fpr": 0.5, "accuracy": 0.5, "brier": 0.41})
    nothing_said = metric_pair([0.2, 0.1], [1, 0])
    assert nothing_said == pytest.approx(
        {"dsc": 0, "tpr": 0, "fpr": 0, "accuracy": 0.5, "brier": 0.325, "auc": 1, "average_precision": 1}
    )
    everywhere = metric_pair([0.9, 0.9], [1, 1])
    assert everywhere == pytest.approx({"dsc": 1, "ppv": 1, "tpr": 1, "accuracy": 1, "brier": 0.01})


def test_a_whole_scan_is_quick():
    random = np.random.default_rng(0)
    scores = random.random((256, 256, 20), dtype=np.float32)
    truth = ndimage.binary_dilation(random.random(scores.shape) < 1e-4, iterations=2)
    start = time.perf_counter()
    voxel_metrics(scores, truth)
    volume_metrics(scores > 0.99, truth, spacing=(0.9, 0.9, 7.0))
    assert time.perf_counter() - start < 5  # about 1.5 s on one idle core


@pytest.mark.parametrize(
    ("scores", "truth", "threshold", "message"),
    [
        ([0.5], [1, 0], 0.5, r"one shape, not empty; got \(1,\), \(2,\)"),
        ([], [], 0.5, "not empty"),
        ([0.5, 1.5], [1, 0], 0.5, "within 0 to 1; got 0.5 to 1.5"),
        ([0.5, math.nan], [1, 0], 0.5, "within 0 to 1"),
        ([0.5, 0.1], [2, 0], 0.5, "truth must hold zeros and ones"),
        ([0.5, 0.1], [1, 0], 1.0, "threshold must be at least 0 and below 1; got 1.0"),
    ],
)
def test_bad_voxels_are_refused(scores, truth, threshold, message):
    with pytest.raises(ValueError, match=message):
        voxel_metrics(scores, truth, threshold=threshold)


@pytest.mark.parametrize(
    ("predicted", "truth", "spacing", "message"),
    [
        (np.zeros((4, 4)), np.zeros((4, 4)), (1, 1, 1), "three-dimensional masks of one shape"),
        (np.zeros((4, 4, 4)), np.zeros((4, 4, 5)), (1, 1, 1), "one shape are needed"),
        (np.full((4, 4, 4), 0.5), np.zeros((4, 4, 4)), (1, 1, 1), "predicted must hold zeros and ones"),
        (np.zeros((4, 4, 4)), np.zeros((4, 4, 4)), (1, 0, 1), "three positive lengths"),
        (np.zeros((4, 4, 4)), np.zeros((4, 4, 4)), (1, 1), "three positive lengths"),
    ],
)
def test_bad_volumes_are_refused(predicted, truth, spacing, message):
    with pytest.raises(ValueError, match=message):
        volume_metrics(predicted, truth, spacing=spacing)


@pytest.mark.filterwarnings("ignore:.*always_return_as_numpy:FutureWarning")  # MONAI 1.6 passes it to itself
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("seed", range(3))
def test_surface_distance_and_dice_are_monais(seed, spacing):
    monai = pytest.importorskip("monai.metrics")
    predicted, truth = pair(seed)
    assert truth[0].any()
    assert predicted[..., -1].any()  # lesions reach the border of the grid, where surfaces are easily lost
    batch = [torch.from_numpy(mask)[None, None] for mask in (predicted, truth)]
    theirs = monai.compute_hausdorff_distance(*batch, include_background=True, percentile=95, spacing=spacing)
    assert volume_metrics(predicted, truth, spacing=spacing).hd95 == pytest.approx(float(theirs), rel=1e-6)
    dice = monai.compute_dice(*batch, include_background=True)
    assert voxel_metrics(predicted.astype(float), truth).dsc == pytest.approx(float(dice), rel=1e-6)


def challenge_lesions(predicted, truth):
    """Recall and F1 of lesions by the published definition, with SimpleITK's components."""
    shares = []
    for mask, other in ((truth, predicted), (predicted, truth)):
        image = sitk.GetImageFromArray(mask.astype(np.uint8))
        labels = sitk.GetArrayFromImage(sitk.ConnectedComponent(image, True))
        shares.append(np.mean([other[labels == label].any() for label in range(1, labels.max() + 1)]))
    recall, precision = shares
    return recall, 2 * recall * precision / (recall + precision)


def challenge_hd95(predicted, truth, spacing):
    """The challenge's distance: contours are taken in each axial slice alone."""
    contours = []
    for mask in (predicted, truth):
        image = sitk.GetImageFromArray(mask.T.astype(np.uint8))
        eroded = sitk.GetArrayFromImage(sitk.BinaryErode(image, (1, 1, 0))).T
        contours.append(np.argwhere(mask & (eroded == 0)) * spacing)
    a, b = contours
    apart = np.linalg.norm(a[:, None] - b[None], axis=2)
    return max(np.percentile(apart.min(axis=axis), 95) for axis in (0, 1))


@pytest.mark.parametrize("seed", range(4))
def test_lesions_and_volume_are_the_challenges(seed):
    predicted, truth = pair(seed)
    recall, f1 = challenge_lesions(predicted, truth)
    measured = volume_metrics(predicted, truth, spacing=(1.0, 1.0, 3.0))
    assert 0 < recall < 1
    assert measured.lesion_recall == pytest.approx(recall)
    assert measured.lesion_f1 == pytest.approx(f1)
    assert measured.volume_difference == pytest.approx(100 * abs(int(predicted.sum()) - int(truth.sum())) / truth.sum())
    assert measured.true_ml == pytest.approx(truth.sum() * 0.003)
    assert measured.predicted_ml == pytest.approx(predicted.sum() * 0.003)


@pytest.mark.parametrize("spacing", SPACINGS)
def test_surface_distance_is_close_to_the_challenges(spacing):
    """Only the choice of contour voxels differs: in thin lesions nearly every voxel is on either contour."""
    for seed in range(4):
        predicted, truth = pair(seed)
        ours = volume_metrics(predicted, truth, spacing=spacing).hd95
        assert ours == pytest.approx(challenge_hd95(predicted, truth, np.array(spacing)), rel=0.1)


def test_lesions_touch_by_corners():
    truth = np.zeros((6, 6, 6), dtype=bool)
    truth[1, 1, 1] = truth[2, 2, 2] = True  # one lesion
    truth[5, 5, 5] = True
    predicted = np.zeros_like(truth)
    predicted[2, 2, 2] = True
    measured = volume_metrics(predicted, truth, spacing=(1.0, 1.0, 1.0))
    assert (measured.lesion_recall, measured.lesion_precision, measured.lesion_f1) == (0.5, 1.0, pytest.approx(2 / 3))


def test_volume_metrics_of_empty_masks():
    none, some = np.zeros((5, 5, 5)), np.ones((5, 5, 5))
    expected = {
        "both": (0, 0, math.nan, math.nan, 1),
        "missed": (math.inf, 100, 0, math.nan, 0),
        "invented": (math.inf, math.inf, math.nan, 0, 0),
    }
    pairs = {"both": (none, none), "missed": (none, some), "invented": (some, none)}
    for name, (predicted, truth) in pairs.items():
        measured = tuple(asdict(volume_metrics(predicted, truth, spacing=(1.0, 1.0, 1.0))).values())[:5]
        np.testing.assert_equal(measured, expected[name], err_msg=name)


def test_lesions_that_never_meet_have_no_f1():
    truth = np.zeros((6, 6, 6))
    truth[1, 1, 1] = 1
    assert volume_metrics(np.roll(truth, 3), truth, spacing=(1.0, 1.0, 1.0)).lesion_f1 == 0
