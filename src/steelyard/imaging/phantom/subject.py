"""One synthetic subject, from a seed and a number to scans and truth."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.phantom.acquisition import (
    Grid,
    Shading,
    draw_shading,
    flair_grid,
    rician,
    sample,
    t1w_grid,
)
from steelyard.imaging.phantom.anatomy import Anatomy, Physique, draw_age, draw_physique, grow_anatomy
from steelyard.imaging.phantom.field import FloatArray
from steelyard.imaging.phantom.lesions import Lesions, draw_load, grow_lesions
from steelyard.imaging.phantom.rigid import Matrix, Rigid, draw_rigid
from steelyard.imaging.phantom.scanner import Scanner
from steelyard.imaging.phantom.signal import RELAXATION, TISSUES, Sequence, tissue_signals, with_lesion_contrast
from steelyard.imaging.phantom.tissue import is_near_head, tissue_at
from steelyard.imaging.phantom.whitestripe import white_stripe

_BRAIN_CENTRE = (0.0, -17.0, 8.0)  # mm, MNI: what the operator brings to the middle of the FLAIR slices
_MOTTLE = 0.025  # s.d. of the tissue's own unevenness, of its signal


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What is drawn for a subject before anything is simulated: cheap, and all of it from (seed, number)."""

    physique: Physique
    load_ml: float
    pose: Rigid
    motion: Rigid
    lesion_contrast: float
    gains: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """An acquired image, the grid it lies on, and the bias field that shades it."""

    grid: Grid
    image: NDArray[np.int16]
    bias: FloatArray


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A synthetic subject.

    Args:
        traits: What was drawn for it.
        t1w: The T1w scan on its own grid.
        flair: The FLAIR scan.
        flair_to_t1w: Where a point of the FLAIR scan lies in the T1w scan: 4 × 4, right-anterior-superior mm.
        wmh: The hyperintensities on FLAIR's grid: at least half of the voxel is lesion.
        brain: The brain on FLAIR's grid: at least half of the voxel lies inside.
        ideal_t1w: T1w on FLAIR's grid as perfect preprocessing would leave it.
        ideal_flair: FLAIR as perfect preprocessing would leave it.
    """

    traits: Traits
    t1w: Scan
    flair: Scan
    flair_to_t1w: Matrix
    wmh: NDArray[np.bool_]
    brain: NDArray[np.bool_]
    ideal_t1w: FloatArray
    ideal_flair: FloatArray

    @property
    def wmh_ml(self) -> float:
        """Volume of the hyperintensities' mask in ml."""
        return float(self.wmh.sum()) * self.flair.grid.voxel_ml


def _streams(seed: int, number: int) -> list[np.random.Generator]:
    """Return independent generators for traits, anatomy, lesions, T1w and FLAIR of one subject."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence([seed, number]).spawn(5)]


def draw_traits(generator: np.random.Generator) -> Traits:
    """Draw a subject's age, physique, lesion load, posture, motion between the scans, and the scanner's gains."""
    age = draw_age(generator)
    physique = draw_physique(age, generator)
    load = draw_load(age, generator)
    pose = draw_rigid(generator, degrees=(4.0, 1.5, 2.0), millimetres=2.0)
    motion = draw_rigid(generator, degrees=(2.0, 1.5, 2.0), millimetres=3.0)
    return Traits(
        physique=physique,
        load_ml=load,
        pose=pose,
        motion=motion,
        lesion_contrast=float(np.clip(generator.normal(1.0, 0.12), 0.7, 1.3)),
        gains=(float(generator.uniform(250, 700)), float(generator.uniform(200, 500))),
    )


def simulate(seed: int, number: int, scanner: Scanner) -> Subject:
    """Make subject `number` of the cohort `seed`: the same for every cohort size, and the same head in every scanner."""
    of_traits, of_anatomy, of_lesions, of_t1w, of_flair = _streams(seed, number)
    traits = draw_traits(of_traits)
    anatomy = grow_anatomy(traits.physique, of_anatomy)
    lesions = grow_lesions(anatomy, traits.load_ml, of_lesions)
    studio = _Studio(anatomy=anatomy, lesions=lesions, scanner=scanner, traits=traits)
    to_head = _flair_to_head(traits)
    motion = traits.motion.matrix()
    flair, truth = studio.scan(scanner.flair, flair_grid(), to_head, of_flair)
    t1w, _ = studio.scan(scanner.t1w, t1w_grid(), to_head @ np.linalg.inv(motion), of_t1w)
    brain, white = truth[0] >= 0.5, truth[2] >= 0.95
    wmh = (truth[1] >= 0.5) & brain
    aligned = _resample(t1w.image / t1w.bias, t1w.grid, flair.grid, motion, brain)
    return Subject(
        traits=traits,
        t1w=t1w,
        flair=flair,
        flair_to_t1w=motion,
        wmh=wmh,
        brain=brain,
        ideal_t1w=white_stripe(aligned, brain, white),
        ideal_flair=white_stripe(flair.image / flair.bias, brain, white),
    )


@dataclass(frozen=True, kw_only=True)
class _Studio:
    """A head in a scanner."""

    anatomy: Anatomy
    lesions: Lesions
    scanner: Scanner
    traits: Traits

    def scan(
        self, sequence: Sequence, grid: Grid, to_head: Matrix, generator: np.random.Generator
    ) -> tuple[Scan, FloatArray]:
        """Acquire an image; also return the shares of brain, lesion and white matter in each voxel."""
        signals = torch.tensor(self._signals(sequence))
        turn = torch.from_numpy(to_head[:3, :3].T.copy()).float()
        shift = torch.from_numpy(to_head[:3, 3].copy()).float()

        def read(points: torch.Tensor) -> torch.Tensor:
            tissue = tissue_at(self.anatomy, self.lesions, points @ turn + shift)
            bright = (signals @ tissue.shares) * (1 + _MOTTLE * tissue.mottle)
            lesion, white = tissue.shares[TISSUES.index("lesion")], tissue.shares[TISSUES.index("white")]
            return torch.stack([bright, tissue.brain, lesion, white])

        def near(points: torch.Tensor) -> torch.Tensor:
            return is_near_head(self.anatomy, points @ turn + shift)

        clean, *truth = sample(grid, near, read)
        bias = draw_shading(self.scanner.shading, generator).on(grid)
        gain = self.traits.gains[sequence is self.scanner.flair]
        image = gain * rician(clean * bias, self.scanner.noise, generator)
        return Scan(grid=grid, image=np.rint(image).astype(np.int16), bias=bias), np.stack(truth)

    def _signals(self, sequence: Sequence) -> tuple[float, ...]:
        relaxation = with_lesion_contrast(RELAXATION[self.scanner.field_strength], self.traits.lesion_contrast)
        kept = 1 - self.scanner.fat_suppression if sequence is self.scanner.flair else 1.0
        signals = tissue_signals(sequence, relaxation)
        return tuple(
            value * kept if tissue in ("fat", "marrow") else value
            for tissue, value in zip(TISSUES, signals, strict=True)
        )


def _flair_to_head(traits: Traits) -> Matrix:
    """Return the map from points of the FLAIR scan to points of the head, which lies turned about its centre."""
    centre = np.asarray(_BRAIN_CENTRE) * traits.physique.size
    matrix = np.linalg.inv(traits.pose.matrix())
    matrix[:3, 3] += centre
    return matrix


def _resample(
    image: FloatArray, own: Grid, target: Grid, to_own: Matrix, mask: NDArray[np.bool_]
) -> FloatArray:
    """Interpolate an image linearly at the voxels of another grid that lie within a mask; 0 elsewhere."""
    to_voxels = np.linalg.inv(own.affine) @ to_own @ target.affine
    indices = np.argwhere(mask)
    places = to_voxels[:3, :3] @ indices.T + to_voxels[:3, 3:]
    resampled = np.zeros(target.shape, dtype=np.float32)
    resampled[mask] = ndimage.map_coordinates(image, places, order=1, output=np.float32)
    return resampled
