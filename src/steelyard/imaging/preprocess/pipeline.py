"""One subject from raw scans to training data, in memory: one step after another.

`prepare` is the whole pipeline, `prepare_contrast` its part that changes intensities:

    read    _read_scans, _read_masks
    brain   find_brains: found first, because it guides the other steps; applied last
    align   _align_t1: T1 onto FLAIR's grid, which is the output grid
    masks   _masks_on_output_grid: supplied masks onto the output grid (_t1_mask_on_flair_grid resamples)
    bias, whitestripe, strip    prepare_contrast: once for each contrast

The table in `scans/frame.py` lists every rule by which a mask is resampled, in training and prediction too.

To add a step, write a module beside `bias.py` that turns a `Volume` into another. Add a setting with the choice `skip`
to `settings.py` and raise `REVISION` there. Then call the step here, in `prepare_contrast` if it changes intensities.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError
from steelyard.imaging.datasets.bids import SUFFIX
from steelyard.imaging.datasets.subjects import Subject
from steelyard.imaging.preprocess.bias import correct_bias
from steelyard.imaging.preprocess.brain import find_brains
from steelyard.imaging.preprocess.register import (
    Alignment,
    DifferentHeadsError,
    dice,
    find_alignment,
    is_same_image,
    refuse_different_heads,
)
from steelyard.imaging.preprocess.settings import Settings
from steelyard.imaging.preprocess.whitestripe import Stripe, find_stripe
from steelyard.imaging.scans.grids import resample_mask, resample_scan
from steelyard.imaging.scans.volumes import Volume, read_mask, read_scan


@dataclass(frozen=True)
class PreparedScan:
    """One contrast on the output grid, after each step.

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
class PreparedSubject:
    """The results of one subject; filled step by step.

    Args:
        space: Whose grid everything is on: `FLAIR`, or `T1w` for a subject without FLAIR.
        brain: The brain mask that is applied.
        scans: By contrast, `flair` and `t1`.
        masks: Supplied masks on the output grid, `wmh` and `brain`.
        alignment: How T1 was brought to FLAIR; None with one contrast.
        overlap: Dice of the brains found on T1 and on FLAIR, once aligned.
        t1_missing: The share of the brain outside T1's field of view; there T1 is 0.
        seconds: Duration of each step.
    """

    space: str
    brain: Volume
    scans: dict[str, PreparedScan] = field(default_factory=dict)
    masks: dict[str, Volume] = field(default_factory=dict)
    alignment: Alignment | None = None
    overlap: float | None = None
    t1_missing: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def prepare(subject: Subject, settings: Settings) -> PreparedSubject:
    """Align, correct, strip and normalise one subject.

    Raises:
        UserError: A file is unusable, in one line that names it.
    """
    paths = subject.scan_paths
    seconds: dict[str, float] = {}
    with measure_seconds(seconds, "read"):
        scans = _read_scans(paths, settings)
        masks = _read_masks(subject, scans, settings)
    with measure_seconds(seconds, "brain"):
        brains = find_brains(scans, paths, supplied=masks.get("brain"), method=settings.brain)

    output_contrast = next(iter(scans))  # FLAIR, or T1 if it is alone
    output_grid = scans[output_contrast]
    prepared = PreparedSubject(SUFFIX[output_contrast], brains[output_contrast], seconds=seconds)
    aligned = dict(scans)
    with measure_seconds(seconds, "align"):
        if len(scans) == 2:
            aligned["t1"] = _align_t1(subject, scans, brains, settings=settings, prepared=prepared)
    prepared.masks = _masks_on_output_grid(masks, output_grid, prepared.alignment)

    # T1 may not reach all of the brain. What it does not show must not take part in its correction.
    visible_brains = dict.fromkeys(scans, prepared.brain)
    if prepared.alignment is not None:
        visible_brains["t1"] = _brain_within_t1(scans["t1"], prepared.brain, prepared.alignment)
        prepared.t1_missing = 1 - float(visible_brains["t1"].voxels.sum()) / float(prepared.brain.voxels.sum())
    for contrast, path in paths.items():
        prepared.scans[contrast] = prepare_contrast(
            aligned[contrast], path, settings, brain=visible_brains[contrast], seconds=seconds
        )
    return prepared


def prepare_contrast(
    aligned: Volume, path: Path | None, settings: Settings, *, brain: Volume, seconds: dict[str, float]
) -> PreparedScan:
    """Correct, normalise and strip one contrast on the output grid.

    Args:
        aligned: The scan.
        path: Its file, which errors name.
        settings: Which steps run. With `brain="skip"` the scan is not stripped.
        brain: Brain mask on the scan's grid.
        seconds: The duration of each step is added to it.
    """
    corrected, bias_field = aligned, None
    if settings.bias == "n4":
        _refuse_normalised(aligned, path, brain)
        with measure_seconds(seconds, "bias"):
            correction = correct_bias(aligned, brain=brain)
        corrected, bias_field = correction.scan, correction.field

    ready, stripe = corrected, None
    with measure_seconds(seconds, "whitestripe"):
        if settings.normalise == "whitestripe":
            try:
                stripe = find_stripe(corrected, brain=brain, width=settings.stripe, depth_mm=settings.depth_mm)
            except UserError as error:
                raise UserError(f"{path}: {error}.") from error
            ready = stripe.apply(corrected)

    if settings.brain != "skip":
        ready = ready.with_voxels(np.where(brain.voxels, ready.voxels, np.float32(0)))
    return PreparedScan(aligned, corrected, ready, bias_field, stripe)


@contextmanager
def measure_seconds(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Add the duration of the `with` block to a step's seconds."""
    start = perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + perf_counter() - start


def _read_scans(paths: dict[str, Path], settings: Settings) -> dict[str, Volume]:
    scans = {}
    for contrast, path in paths.items():
        scans[contrast] = read_scan(path, most_voxels=settings.most_voxels)
    return scans


def _read_masks(subject: Subject, scans: dict[str, Volume], settings: Settings) -> dict[str, Volume]:
    """Return the supplied masks, `wmh` and `brain`, each on the grid of one of the scans."""
    masks: dict[str, Volume] = {}
    if subject.wmh is not None:
        mask = read_mask(subject.wmh, may_be_empty=settings.empty_wmh, most_voxels=settings.most_voxels)
        _check_grid(subject.wmh, mask, scans)
        masks["wmh"] = mask
    if subject.brain is not None:
        try:
            mask = read_mask(subject.brain, most_voxels=settings.most_voxels)
            _check_grid(subject.brain, mask, scans)
            masks["brain"] = mask
        except UserError:
            # Unless it is to be applied, the mask would only be compared with the brain that is found.
            if settings.brain == "own":
                raise
    return masks


def _check_grid(path: Path, mask: Volume, scans: dict[str, Volume]) -> None:
    if not any(mask.same_grid(scan) for scan in scans.values()):
        raise UserError(f"{path}: the mask is on another grid than the scans of its subject.")


def _align_t1(
    subject: Subject,
    scans: dict[str, Volume],
    brains: dict[str, Volume],
    *,
    settings: Settings,
    prepared: PreparedSubject,
) -> Volume:
    """Return T1 on FLAIR's grid and record its alignment; refuse T1 and FLAIR that are not a pair of one head."""
    flair, t1 = scans["flair"], scans["t1"]
    try:
        alignment = find_alignment(flair, t1, brain=brains["flair"], t1_brain=brains.get("t1"), settings=settings)
        aligned = t1 if alignment.unchanged else resample_scan(t1, flair, alignment.matrix)
        if is_same_image(flair, aligned, brains["flair"]):
            raise UserError(
                f"{subject.t1}: shows the same image as {subject.flair}; one of them is of the other contrast."
            )
        if "t1" in brains:
            t1_brain = _t1_mask_on_flair_grid(brains["t1"], flair, alignment)
            prepared.overlap = dice(t1_brain.voxels, brains["flair"].voxels)
        refuse_different_heads(alignment.information, prepared.overlap)
    except DifferentHeadsError as error:
        raise UserError(f"{subject.t1}: cannot be of the same head as {subject.flair}; {error}.") from error
    prepared.alignment = alignment
    return aligned


def _masks_on_output_grid(
    masks: dict[str, Volume], output_grid: Volume, alignment: Alignment | None
) -> dict[str, Volume]:
    """Return the supplied masks on the output grid; this decides which of them are resampled.

    A mask on the output grid stays unchanged. Any other mask is on T1's grid (`_check_grid`): it was drawn on T1, so it
    follows T1 to FLAIR.
    """
    on_output_grid = {}
    for name, mask in masks.items():
        if mask.same_grid(output_grid) or alignment is None:
            on_output_grid[name] = mask
        else:
            on_output_grid[name] = _t1_mask_on_flair_grid(mask, output_grid, alignment)
    return on_output_grid


def _t1_mask_on_flair_grid(mask: Volume, flair_grid: Volume, alignment: Alignment) -> Volume:
    """Return a mask from T1's grid on FLAIR's, by nearest neighbour; preprocessing resamples masks only here.

    Training resamples them again, into a network's planes: see the table in `scans/frame.py`.
    """
    if mask.same_grid(flair_grid) and np.array_equal(alignment.matrix, np.eye(4)):
        return mask
    return resample_mask(mask, flair_grid, alignment.matrix)


def _brain_within_t1(t1: Volume, brain: Volume, alignment: Alignment) -> Volume:
    """Return the part of the brain, on FLAIR's grid, that lies within T1's field of view."""
    whole_view = t1.with_voxels(np.ones(t1.voxels.shape, dtype=bool))
    visible = _t1_mask_on_flair_grid(whole_view, brain, alignment)
    return brain.with_voxels(visible.voxels & brain.voxels)


def _refuse_normalised(scan: Volume, path: Path | None, brain: Volume) -> None:
    """Refuse a scan that cannot have a bias field to divide out: N4 needs positive intensities."""
    if not np.median(scan.voxels[brain.voxels]) > 0:
        raise UserError(
            f"{path}: the brain's median is not positive, as if the scan were normalised already; "
            "--bias skip --normalise skip takes it as it is."
        )
