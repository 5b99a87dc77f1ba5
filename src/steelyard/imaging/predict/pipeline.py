"""One scan from the file to its lesions, in memory: one step after another.

Probabilities and lesions are on the scan's own voxels. `segment` interpolates the network's probabilities back to them
(`frame._interpolation`), then `inference.lesion_mask` applies the threshold: the lesion mask itself is not resampled.
The table in `scans/frame.py` lists the rules for masks. `outputs.py` restores the axes of the file.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from steelyard.errors import UserError
from steelyard.imaging.anatomy.lesions import LesionSummary, measure_lesions
from steelyard.imaging.anatomy.ventricles import find_ventricles
from steelyard.imaging.networks.inference import FOUR_TIMES, lesion_mask, segment
from steelyard.imaging.predict.options import FindBrain, Options
from steelyard.imaging.predict.trained_network import TrainedNetwork
from steelyard.imaging.preprocess.brain import extract_brain
from steelyard.imaging.preprocess.pipeline import measure_seconds, prepare_contrast
from steelyard.imaging.preprocess.settings import Settings
from steelyard.imaging.scans.background import is_stripped, stripped_brain
from steelyard.imaging.scans.volumes import Volume, canonical, read_scan

_SPACING_DECIMALS = 4  # headers round, differently along each axis; results must not depend on which axis is which

BrainMethod = Literal["deepbet", "stripped"]
"""How a brain was found: by deepbet, or as what is not background."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The lesions of one scan; all volumes are on one upright grid of the scan's own voxels.

    Upright means right-anterior-superior, with the first voxel at the origin.

    Args:
        scan: Without its bias field, skull still on.
        brain: The brain, which was segmented.
        probabilities: Of a lesion, for each voxel.
        lesions: Above the threshold, the smallest dropped.
        ventricles: The lateral ventricles, if they were found.
        steps: The method of each step, by the step's name.
        seconds: Duration of each step.
    """

    scan: Volume
    brain: Volume
    probabilities: Volume
    lesions: LesionSummary
    ventricles: Volume | None
    steps: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)


def predict_scan(path: Path, trained: TrainedNetwork, options: Options) -> Prediction:
    """Strip, correct and normalise a scan and find its lesions.

    Everything is computed on upright voxels at the origin. So a scan that is stored with other axes gives bit-identical
    lesions.

    Raises:
        UserError: The file is unusable or shows no brain, in one line that names it.
    """
    seconds: dict[str, float] = {}
    with measure_seconds(seconds, "read"):
        scan = upright_at_origin(read_scan(path, most_voxels=options.most_voxels))
    with measure_seconds(seconds, "brain"):
        try:
            brain, brain_method = find_brain(scan, options.brain)
        except UserError as error:
            raise UserError(f"{path}: {error}.") from error
    # `own`: everything outside the brain is set to zero, however it was found. The network has seen nothing else.
    settings = Settings(brain="own", bias=options.bias, normalise=options.normalise)
    prepared = prepare_contrast(scan, path, settings, brain=brain, seconds=seconds)
    corrected, ready = prepared.corrected, prepared.ready
    del scan, prepared  # with the bias field, gigabytes of a fine scan that are not needed any more
    with measure_seconds(seconds, "segment"):
        probabilities = segment(trained.network, ready, brain, frame=trained.frame, shifts=FOUR_TIMES)
    with measure_seconds(seconds, "lesions"):
        ventricles = find_ventricles(ready, brain)
        mask = brain.with_voxels(lesion_mask(probabilities.voxels, options.threshold))
        lesions = measure_lesions(mask, ventricles=ventricles, smallest_ml=options.smallest_ml)
    return Prediction(
        scan=corrected,
        brain=brain,
        probabilities=probabilities,
        lesions=lesions,
        ventricles=ventricles,
        steps={"brain": brain_method, "bias": options.bias, "normalise": options.normalise},
        seconds=seconds,
    )


def find_brain(scan: Volume, option: FindBrain) -> tuple[Volume, BrainMethod]:
    """Return the brain, and how it was found.

    Raises:
        UserError: There is no brain.
    """
    if option == "skip" or (option == "auto" and is_stripped(scan)):
        return stripped_brain(scan), "stripped"
    return extract_brain(scan), "deepbet"


def upright_at_origin(scan: Volume) -> Volume:
    """Return a scan with its axes flipped and swapped to right, anterior, superior, at the origin."""
    upright = canonical(scan)
    spacing = [round(edge, _SPACING_DECIMALS) for edge in upright.spacing]
    return Volume(upright.voxels, np.diag([*spacing, 1.0]))
