"""One subject from raw scans to training data, in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from steelyard.errors import UserError
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess.bias import correct_bias
from steelyard.imaging.preprocess.brain import NoBrainError, extract_brain
from steelyard.imaging.preprocess.register import Alignment, align, keep_if_aligned
from steelyard.imaging.preprocess.settings import Settings
from steelyard.imaging.preprocess.whitestripe import Stripe, find_stripe
from steelyard.imaging.scans.grids import from_image, resample, to_image
from steelyard.imaging.scans.volumes import Volume, read_mask, read_scan

# Once aligned, twelve real pairs and the phantoms share 0.45 nats and more and their brains overlap by 0.969 and more;
# T1 and FLAIR of different people shared 0.10 to 0.17 (real) or 0.33 (phantom) and overlapped by 0.82 to 0.95.
_LEAST_INFORMATION = 0.2
_LEAST_OVERLAP = 0.85
_LITTLE_INFORMATION, _LITTLE_OVERLAP = 0.4, 0.96  # each may happen to a pair of one head, both together not
_SAME_IMAGE = 0.995  # correlation within the brain; T1 and FLAIR of one head are far below


@dataclass(frozen=True)
class Channel:
    """One contrast on the output grid.

    Args:
        aligned: Before any change of intensity.
        corrected: Without the bias field, skull still on.
        ready: Stripped and normalised.
        field: The bias field, if one was estimated.
        stripe: The white stripe, if the scan was normalised.
    """

    aligned: Volume
    corrected: Volume
    ready: Volume
    field: NDArray[np.float32] | None
    stripe: Stripe | None


@dataclass
class Prepared:
    """What came out for one subject; filled step by step.

    Args:
        space: Whose grid everything is on: `FLAIR`, or `T1w` for a subject without FLAIR.
        brain: The brain mask that was applied.
        channels: By contrast, `flair` and `t1`.
        masks: Supplied masks on the output grid, `wmh` and `brain`.
        alignment: How T1 came to FLAIR; none with one contrast.
        overlap: Dice of the brains found on T1 and on FLAIR, once aligned.
        t1_missing: The share of the brain that lies outside T1's field of view; there T1 is 0.
        seconds: What each step took.
    """

    space: str
    brain: Volume
    channels: dict[str, Channel] = field(default_factory=dict)
    masks: dict[str, Volume] = field(default_factory=dict)
    alignment: Alignment | None = None
    overlap: float | None = None
    t1_missing: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def prepare(subject: Subject, settings: Settings) -> Prepared:
    """Align, correct, strip and normalise one subject.

    The brain is found first, because it guides the other steps, and applied last.

    Raises:
        UserError: A file is unusable, in one line that names it.
    """
    seconds: dict[str, float] = {}
    with timed(seconds, "read"):
        paths = {"flair": subject.flair, "t1": subject.t1}
        limit = settings.most_voxels
        scans = {name: read_scan(path, most_voxels=limit) for name, path in paths.items() if path is not None}
        masks = _read_masks(subject, scans, settings)
    whole_t1 = scans.get("t1", next(iter(scans.values())))
    main = "flair" if "flair" in scans else "t1"
    with timed(seconds, "brain"):
        brains = _find_brains(subject, scans, masks, settings)
    done = Prepared("FLAIR" if main == "flair" else "T1w", brains[main], seconds=seconds)
    with timed(seconds, "align"):
        if len(scans) == 2:
            _bring_together(subject, scans, brains, settings=settings, done=done)
    for name, mask in masks.items():
        at_home = mask.same_grid(scans[main])
        done.masks[name] = mask if at_home else _follow(mask, scans["flair"], done.alignment)
    reach = dict.fromkeys(scans, done.brain)
    if done.alignment is not None:
        reach["t1"] = _within_view(whole_t1, done)
    for contrast, scan in scans.items():
        done.channels[contrast] = finish(scan, paths[contrast], settings, brain=reach[contrast], seconds=seconds)
    return done


def _within_view(t1: Volume, done: Prepared) -> Volume:
    """The part of the brain that T1's field of view reaches."""
    assert done.alignment is not None  # noqa: S101
    everywhere = t1.with_voxels(np.ones(t1.voxels.shape, dtype=bool))
    seen = _follow(everywhere, done.brain, done.alignment).voxels & done.brain.voxels
    done.t1_missing = 1 - float(seen.sum()) / float(done.brain.voxels.sum())
    return done.brain.with_voxels(seen)


@contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Add to what a step took."""
    start = perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + perf_counter() - start


def _read_masks(subject: Subject, scans: dict[str, Volume], settings: Settings) -> dict[str, Volume]:
    masks: dict[str, Volume] = {}
    if subject.wmh is not None:
        masks["wmh"] = read_mask(subject.wmh, may_be_empty=settings.empty_wmh, most_voxels=settings.most_voxels)
        _check_grid(subject.wmh, masks["wmh"], scans)
    if subject.brain is not None:
        try:
            masks["brain"] = read_mask(subject.brain, most_voxels=settings.most_voxels)
            _check_grid(subject.brain, masks["brain"], scans)
        except UserError:
            if settings.brain == "own":
                raise
            masks.pop("brain", None)  # it would only have been compared with ours
    return masks


def _check_grid(path: Path, mask: Volume, scans: dict[str, Volume]) -> None:
    if not any(mask.same_grid(scan) for scan in scans.values()):
        raise UserError(f"{path}: the mask is on another grid than the scans of its subject.")


def _find_brains(
    subject: Subject, scans: dict[str, Volume], masks: dict[str, Volume], settings: Settings
) -> dict[str, Volume]:
    """Return a mask per contrast, each on its own scan's grid; an own mask serves the scan whose grid it is on."""
    brains: dict[str, Volume] = {}
    own = masks.get("brain") if settings.brain == "own" else None
    for contrast, scan in scans.items():
        decides = contrast == "flair" or "flair" not in scans
        if settings.brain == "skip":
            if decides:
                brains[contrast] = foreground(scan)
        elif own is not None and own.same_grid(scan):
            brains[contrast] = own
        elif own is None or decides:
            try:
                brains[contrast] = extract_brain(scan)
            except NoBrainError as error:
                raise UserError(f"{getattr(subject, contrast)}: {error}.") from error
    return brains


def foreground(scan: Volume) -> Volume:
    """Return what is not background: above the lowest value where that is a plateau, above Otsu's threshold else."""
    lowest = scan.voxels.min()
    if np.mean(scan.voxels == lowest) > 0.2:
        return scan.with_voxels(scan.voxels > lowest)
    return scan.with_voxels(from_image(sitk.OtsuThreshold(to_image(scan), 0, 1), scan).voxels != 0)


def _bring_together(
    subject: Subject,
    scans: dict[str, Volume],
    brains: dict[str, Volume],
    *,
    settings: Settings,
    done: Prepared,
) -> None:
    """Put T1 and its brain on FLAIR's grid, in place."""
    flair, t1 = scans["flair"], scans["t1"]
    one_grid = flair.same_grid(t1)
    found = Alignment(np.eye(4), 0.0, None, kept=one_grid)
    if settings.align != "skip":
        try:
            found = align(flair, t1, brain=brains["flair"], t1_brain=brains.get("t1"))
        except RuntimeError as error:
            raise _strangers(subject, "they do not overlap") from error
    if settings.align == "auto":
        found = keep_if_aligned(found, one_grid=one_grid, tolerance_mm=settings.aligned_mm)
    done.alignment = found
    scans["t1"] = t1 if found.kept and one_grid else resample(t1, flair, found.matrix)
    inside = brains["flair"].voxels
    with np.errstate(invalid="ignore"):  # of a scan without contrast there is no correlation, only NaN
        correlation = np.corrcoef(flair.voxels[inside], scans["t1"].voxels[inside])[0, 1]
    if correlation > _SAME_IMAGE:
        raise UserError(f"{subject.t1}: shows the same image as {subject.flair}; one of them is of the other contrast.")
    if found.information is not None and found.information < _LEAST_INFORMATION:
        raise _strangers(subject, f"once aligned, they share {found.information:.2f} nats of information only")
    if "t1" not in brains:
        return
    done.overlap = dice(_follow(brains["t1"], flair, found).voxels, brains["flair"].voxels)
    little = found.information is not None and found.information < _LITTLE_INFORMATION
    if done.overlap < _LEAST_OVERLAP or (little and done.overlap < _LITTLE_OVERLAP):
        raise _strangers(subject, f"once aligned, their brains overlap by a Dice of {done.overlap:.2f} only")


def _strangers(subject: Subject, why: str) -> UserError:
    return UserError(f"{subject.t1}: cannot be of the same head as {subject.flair}; {why}.")


def _follow(mask: Volume, grid: Volume, alignment: Alignment | None) -> Volume:
    matrix = np.eye(4) if alignment is None else alignment.matrix
    return mask if mask.same_grid(grid) and np.array_equal(matrix, np.eye(4)) else resample(mask, grid, matrix)


def dice(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Return the Dice overlap of two masks; two empty masks agree.

    >>> dice(np.array([True, True, False]), np.array([True, False, False]))
    0.6666666666666666
    """
    total = int(first.sum()) + int(second.sum())
    return 2.0 * int((first & second).sum()) / total if total else 1.0


def finish(
    aligned: Volume, path: Path | None, settings: Settings, *, brain: Volume, seconds: dict[str, float]
) -> Channel:
    """Correct, strip and normalise one contrast on the output grid."""
    corrected, bias, stripe = aligned, None, None
    if settings.bias == "n4":
        if not np.median(aligned.voxels[brain.voxels]) > 0:
            raise UserError(
                f"{path}: the brain's median is not positive, as if the scan were normalised already; "
                "--bias skip --normalise skip takes it as it is."
            )
        with timed(seconds, "bias"):
            correction = correct_bias(aligned, brain=brain)
            corrected, bias = correction.scan, correction.field
    with timed(seconds, "whitestripe"):
        ready = corrected
        if settings.normalise == "whitestripe":
            try:
                stripe = find_stripe(corrected, brain=brain, width=settings.stripe, depth_mm=settings.depth_mm)
            except UserError as error:
                raise UserError(f"{path}: {error}.") from error
            ready = stripe.apply(corrected)
    if settings.brain != "skip":
        ready = ready.with_voxels(np.where(brain.voxels, ready.voxels, np.float32(0)))
    return Channel(aligned, corrected, ready, bias, stripe)
