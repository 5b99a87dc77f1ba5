"""Small analytic heads: tissue is a function of place, so that a moved head is known exactly."""

from pathlib import Path

import nibabel
import numpy as np

from steelyard.imaging.scans.volumes import Volume

SHAPE = (60, 72, 44)
AFFINE = np.array([[-3.0, 0, 0, 88.5], [0, 3.0, 0, -106.5], [0, 0, 3.5, -75.0], [0, 0, 0, 1]])
LEVELS = {"flair": (5.0, 60.0, 100.0, 130.0, 180.0, 210.0), "t1": (5.0, 130.0, 60.0, 110.0, 160.0, 150.0)}


def motion(degrees: float = 4.0, shift: tuple[float, float, float] = (3.0, -2.0, 4.0)) -> np.ndarray:
    """A rigid motion as a 4×4 matrix."""
    angle = np.radians(degrees)
    cosine, sine = np.cos(angle), np.sin(angle)
    matrix = np.eye(4)
    matrix[:3, :3] = [[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]]
    matrix[:3, 3] = shift
    return matrix


def tissue(shape=SHAPE, affine=AFFINE, *, pose=None, size: float = 1.0) -> np.ndarray:
    """0 air, 1 scalp, 2 skull, 3 grey, 4 white matter, 5 lesion."""
    indices = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    points = indices @ affine[:3, :3].T + affine[:3, 3]
    pose = np.eye(4) if pose is None else np.linalg.inv(pose)
    x, y, z = np.moveaxis((points @ pose[:3, :3].T + pose[:3, 3]) / size, -1, 0)
    radius = np.sqrt((x / 62) ** 2 + (y / 78) ** 2 + (z / 56) ** 2)
    fold = 0.045 * np.sin(x / 6) * np.sin(y / 7) * np.cos(z / 8) + 0.02 * np.sin(y / 11)
    labels = np.zeros(shape, dtype=np.int64)
    labels[radius < 1.25] = 1
    labels[radius < 1.12] = 2
    labels[radius < 1.0] = 3
    labels[radius + fold < 0.88] = 4
    labels[(x / 9) ** 2 + ((y - 5) / 26) ** 2 + ((z - 8) / 10) ** 2 < 1] = 2
    labels[((x - 20) / 6) ** 2 + ((y + 10) / 9) ** 2 + ((z - 12) / 6) ** 2 < 1] = 5
    return labels


def scan(contrast: str, labels: np.ndarray, *, affine=AFFINE, seed: int = 0, noise: float = 4.0) -> Volume:
    """A contrast of a head."""
    values = np.array(LEVELS[contrast])[labels]
    values = values + np.random.default_rng(seed).normal(0.0, noise, labels.shape)
    return Volume(np.maximum(values, 0.0).astype(np.float32), affine)


def brain(labels: np.ndarray, *, affine=AFFINE) -> Volume:
    """The brain, ventricles included."""
    inside = labels >= 3
    ventricles = np.zeros_like(inside)
    ventricles[20:40, 20:50, 15:35] = labels[20:40, 20:50, 15:35] == 2
    return Volume(inside | ventricles, affine)


def save(path: Path, volume: Volume) -> Path:
    """Write a volume plainly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    voxels = volume.voxels.astype(np.uint8) if volume.voxels.dtype == bool else volume.voxels
    nibabel.Nifti1Image(voxels, volume.affine).to_filename(path)
    return path


def write_subject(root: Path, name: str, *, seed: int = 0, contrasts=("flair", "t1"), ending: str = ".nii.gz") -> Path:
    """One BIDS subject with manual masks; returns its anat folder."""
    labels = tissue(size=1.0 + 0.01 * (seed % 5))
    folder = root / f"sub-{name}" / "anat"
    for contrast in contrasts:
        suffix = {"flair": "FLAIR", "t1": "T1w"}[contrast]
        save(folder / f"sub-{name}_{suffix}{ending}", scan(contrast, labels, seed=2 * seed + (contrast == "t1")))
    masks = root / "derivatives" / "manual" / f"sub-{name}" / "anat"
    space = "FLAIR" if "flair" in contrasts else "T1w"
    save(masks / f"sub-{name}_space-{space}_label-brain_mask.nii.gz", brain(labels))
    save(masks / f"sub-{name}_space-{space}_label-WMH_mask.nii.gz", Volume(labels == 5, AFFINE))
    return folder
