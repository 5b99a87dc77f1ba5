"""One scan from the file to its lesions, in memory."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from steelyard.errors import UserError
from steelyard.imaging.anatomy.lesions import LesionSummary, measure_lesions
from steelyard.imaging.anatomy.ventricles import find_ventricles
from steelyard.imaging.networks.inference import FOUR_TIMES, lesion_mask, segment
from steelyard.imaging.predict.brain import find_brain
from steelyard.imaging.predict.options import Options
from steelyard.imaging.predict.trained_network import Model
from steelyard.imaging.preprocess.pipeline import finish, timed
from steelyard.imaging.preprocess.settings import Settings
from steelyard.imaging.scans.volumes import Volume, canonical, read_scan

_SPACING_DECIMALS = 4  # headers round, differently along each axis; what is computed must not tell the axes apart


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What was found in one scan; all on one upright grid, right-anterior-superior, in the scan's own voxels.

    Args:
        scan: As read, without its bias field, skull still on.
        brain: What was segmented.
        probabilities: Of a lesion, for each voxel.
        lesions: Above the threshold, the smallest dropped.
        ventricles: The lateral ventricles, if they were found.
        steps: What was done, by the name of the step.
        seconds: What each step took.
    """

    scan: Volume
    brain: Volume
    probabilities: Volume
    lesions: LesionSummary
    ventricles: Volume | None
    steps: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)


def predict_scan(path: Path, model: Model, options: Options) -> Prediction:
    """Strip, correct and normalise a scan and find its lesions.

    Everything is computed on upright voxels at the origin, so that a scan that is stored with other axes gives the
    same lesions to the bit.

    Raises:
        UserError: The file is unusable or shows no brain, in one line that names it.
    """
    seconds: dict[str, float] = {}
    with timed(seconds, "read"):
        scan = upright(read_scan(path, most_voxels=options.most_voxels))
    with timed(seconds, "brain"):
        try:
            brain, how = find_brain(scan, options.brain)
        except UserError as error:
            raise UserError(f"{path}: {error}.") from error
    # Outside the brain everything is set to zero, whoever found it: the network has seen nothing else.
    settings = Settings(brain="own", bias=options.bias, normalise=options.normalise)
    channel = finish(scan, path, settings, brain=brain, seconds=seconds)
    corrected, ready = channel.corrected, channel.ready
    del scan, channel  # with the bias field, gigabytes of a fine scan that nothing needs any more
    with timed(seconds, "segment"):
        probabilities = segment(model.network, ready, brain, frame=model.frame, shifts=FOUR_TIMES)
    with timed(seconds, "lesions"):
        ventricles = find_ventricles(ready, brain)
        mask = brain.with_voxels(lesion_mask(probabilities.voxels, options.threshold))
        lesions = measure_lesions(mask, ventricles=ventricles, smallest_ml=options.smallest_ml)
    return Prediction(
        scan=corrected,
        brain=brain,
        probabilities=probabilities,
        lesions=lesions,
        ventricles=ventricles,
        steps={"brain": how, "bias": options.bias, "normalise": options.normalise},
        seconds=seconds,
    )


def upright(scan: Volume) -> Volume:
    """Return a scan with its axes flipped and swapped to right, anterior, superior, at the origin."""
    turned = canonical(scan)
    spacing = [round(edge, _SPACING_DECIMALS) for edge in turned.spacing]
    return Volume(turned.voxels, np.diag([*spacing, 1.0]))
