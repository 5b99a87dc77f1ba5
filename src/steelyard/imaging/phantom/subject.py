"""One synthetic subject, from a seed and a number to scans and truth."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.anatomy.field import FloatArray
from steelyard.imaging.anatomy.rigid import Matrix
from steelyard.imaging.anatomy.white_stripe import histogram_peak, stripe_values
from steelyard.imaging.phantom.acquisition import Grid, draw_shading, flair_grid, rician, sample, t1w_grid
from steelyard.imaging.phantom.anatomy import grow_anatomy
from steelyard.imaging.phantom.lesions import grow_lesions
from steelyard.imaging.phantom.scanner import Scanner
from steelyard.imaging.phantom.tissue import PosedHead, TissueSample
from steelyard.imaging.phantom.traits import Traits, draw_traits

_MOTTLE = 0.025  # s.d. of the tissue's own unevenness, of its signal


@dataclass(frozen=True, kw_only=True)
class SimulatedScan:
    """An acquired image, the grid it lies on, and the bias field that shades it."""

    grid: Grid
    image: NDArray[np.int16]
    bias: FloatArray

    def unshaded(self) -> FloatArray:
        """Return the image without its bias field."""
        return np.asarray(self.image / self.bias, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class SimulatedSubject:
    """A synthetic subject.

    Args:
        traits: What was drawn for it.
        t1w: The T1w scan on its own grid.
        flair: The FLAIR scan.
        wmh: The hyperintensities on FLAIR's grid: at least half of the voxel is lesion.
        brain: The brain on FLAIR's grid: at least half of the voxel lies inside.
        white: White matter without lesions on FLAIR's grid: at least 95 % of the voxel.
        ideal_t1w: T1w on FLAIR's grid as perfect preprocessing would leave it: aligned, without bias,
            WhiteStripe normalised, 0 outside the brain. Its noise is that of the acquired scan.
        ideal_flair: FLAIR as perfect preprocessing would leave it.
    """

    traits: Traits
    t1w: SimulatedScan
    flair: SimulatedScan
    wmh: NDArray[np.bool_]
    brain: NDArray[np.bool_]
    white: NDArray[np.bool_]
    ideal_t1w: FloatArray
    ideal_flair: FloatArray

    @property
    def flair_to_t1w(self) -> Matrix:
        """Where a point of the FLAIR scan lies in the T1w scan: 4 × 4, right-anterior-superior mm."""
        return self.traits.motion.matrix()

    @property
    def wmh_ml(self) -> float:
        """Volume of the hyperintensities' mask in ml."""
        return float(self.wmh.sum()) * self.flair.grid.voxel_ml


def traits_of(seed: int, number: int) -> Traits:
    """Return the traits of subject `number` of the cohort `seed`, without simulating it."""
    return draw_traits(_streams(seed, number)[0])


def _streams(seed: int, number: int) -> list[np.random.Generator]:
    """Return independent generators for traits, anatomy, lesions, T1w and FLAIR of one subject."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence([seed, number]).spawn(5)]


def simulate(seed: int, number: int, scanner: Scanner) -> SimulatedSubject:
    """Simulate subject `number` of the cohort `seed`: the same for any cohort size, one head in every scanner."""
    *head_generators, t1w_generator, flair_generator = _streams(seed, number)
    traits, head = _grow_head(*head_generators)
    clean, in_brain, in_lesion, in_white = _flair_and_truth(head, scanner.flair_signals(traits.lesion_contrast))
    flair = _acquire(clean, flair_grid(), scanner, traits.gains[1], flair_generator)
    moved = replace(head, to_head=head.to_head @ np.linalg.inv(traits.motion.matrix()))
    clean = noiseless_t1w(moved, t1w_grid(), scanner.t1w_signals(traits.lesion_contrast))
    t1w = _acquire(clean, t1w_grid(), scanner, traits.gains[0], t1w_generator)
    brain, white = in_brain >= 0.5, in_white >= 0.95
    return SimulatedSubject(
        traits=traits,
        t1w=t1w,
        flair=flair,
        wmh=(in_lesion >= 0.5) & brain,
        brain=brain,
        white=white,
        ideal_t1w=white_stripe(_aligned(t1w, flair.grid, traits.motion.matrix(), brain), brain, white),
        ideal_flair=white_stripe(flair.unshaded(), brain, white),
    )


def ventricles_of(seed: int, number: int) -> NDArray[np.bool_]:
    """Return the lateral ventricles of a subject on FLAIR's grid: at least half of the voxel is their fluid.

    As in the template, these are the bodies, the frontal horns and the atria, without the temporal horns.
    """
    *head_generators, _, _ = _streams(seed, number)
    _, head = _grow_head(*head_generators)

    def read(points: torch.Tensor) -> torch.Tensor:
        return head.ventricles_at(points)[None]

    return np.asarray(sample(flair_grid(), head.is_near, read, channels=1)[0] >= 0.5)


def _grow_head(*generators: np.random.Generator) -> tuple[Traits, PosedHead]:
    """Draw a subject and its head as it lies during FLAIR, from the generators of traits, anatomy and lesions."""
    traits_generator, anatomy_generator, lesions_generator = generators
    traits = draw_traits(traits_generator)
    anatomy = grow_anatomy(traits.physique, anatomy_generator)
    lesions = grow_lesions(anatomy, traits.load_ml, lesions_generator)
    pose = traits.flair_to_head()
    return traits, PosedHead(anatomy=anatomy, lesions=lesions, to_head=pose, damage=traits.damage, lining=traits.lining)


def noiseless_t1w(head: PosedHead, grid: Grid, signals: tuple[float, ...]) -> FloatArray:
    """Return the signal on a grid before shading and noise, in units of white matter's."""

    def read(points: torch.Tensor) -> torch.Tensor:
        return _brightness(head.tissue_at(points), signals)[None]

    return np.asarray(sample(grid, head.is_near, read, channels=1)[0])


def _flair_and_truth(head: PosedHead, signals: tuple[float, ...]) -> FloatArray:
    """Return FLAIR's signal before shading and noise, then the shares of brain, lesion and white matter."""

    def read(points: torch.Tensor) -> torch.Tensor:
        tissue = head.tissue_at(points)
        lesion = tissue.share_of("lesion") + tissue.share_of("hole")
        return torch.stack([_brightness(tissue, signals), tissue.brain, lesion, tissue.share_of("white")])

    return sample(flair_grid(), head.is_near, read, channels=4)


def _brightness(tissue: TissueSample, signals: tuple[float, ...]) -> torch.Tensor:
    return tissue.weighted(signals) * (1 + _MOTTLE * tissue.mottle)


def _acquire(
    clean: FloatArray, grid: Grid, scanner: Scanner, gain: float, generator: np.random.Generator
) -> SimulatedScan:
    """Shade a signal, add noise, and count it in the scanner's units."""
    bias = draw_shading(scanner.shading, generator).on(grid)
    image = rician(clean * bias, scanner.noise, generator)
    image *= gain
    return SimulatedScan(grid=grid, image=np.rint(image, out=image).astype(np.int16), bias=bias)


def _aligned(scan: SimulatedScan, target: Grid, to_scan: Matrix, mask: NDArray[np.bool_]) -> FloatArray:
    """Interpolate an unshaded scan linearly at a mask's voxels on another grid; 0 elsewhere."""
    to_voxels = np.linalg.inv(scan.grid.affine) @ to_scan @ target.affine
    indices = to_voxels[:3, :3] @ np.argwhere(mask).T + to_voxels[:3, 3:]  # (3, n), not whole numbers
    aligned = np.zeros(target.shape, dtype=np.float32)
    aligned[mask] = ndimage.map_coordinates(scan.unshaded(), indices, order=1, output=np.float32)
    return aligned


def white_stripe(image: FloatArray, brain: NDArray[np.bool_], white: NDArray[np.bool_]) -> FloatArray:
    """Return (image − m) / s within the brain and 0 elsewhere, m and s the mean and s.d. of the white stripe.

    The stripe is the tenth of the brain's voxels whose ranks lie around that of white matter's most frequent
    value. WhiteStripe estimates that value from the histogram of the brain; here white matter is known.

    Args:
        image: The scan, free of bias.
        brain: The brain.
        white: White matter without lesions.
    """
    low, high = np.quantile(image[white], [0.01, 0.99])
    # Smoothed over 4 of 200 bins: 2 % of the range.
    peak = histogram_peak(image[white], limits=(low, high), bins=200, smoothing=4.0)
    values = image[brain]
    stripe = stripe_values(values, peak).astype(np.float64)
    normalised = np.zeros_like(image)
    normalised[brain] = (values - stripe.mean()) / stripe.std()
    return normalised
