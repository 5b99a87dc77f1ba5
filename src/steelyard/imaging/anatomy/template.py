"""The average anatomy of which every subject is a variation: MNI152, from nilearn's wheel."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from steelyard.imaging.anatomy.field import Field, FloatArray, Vector, field_of
from steelyard.imaging.scans.boxes import Box

_INSIDE_LATERAL_VENTRICLE = (-6.0, 0.0, 20.0)  # mm, MNI
# mm, MNI: x, y and z of the box that holds all white matter in which hyperintensities occur
_AROUND_VENTRICLES = ((-62.0, 63.0), (-98.0, 68.0), (-34.0, 66.0))
_CSF_BRIGHTNESS, _WHITE_BRIGHTNESS = 0.25, 0.85  # in the template's T1 image, of its maximum
_PUSH_REACH = 12.0  # mm over which the push of a growing ventricle fades


@dataclass(frozen=True, kw_only=True)
class Template:
    """The MNI152 anatomy (ICBM 2009a, symmetric; Fonov et al., NeuroImage 2011) as fields in MNI millimetres.

    Args:
        tissues: Grey and white matter probability, 1 mm; the rest of the brain is cerebrospinal fluid.
        brain_distance: Signed distance to the brain's surface (negative inside), 2 mm, wider than the head.
        ventricle_distance: Signed distance to the lateral ventricles without their temporal horns (negative
            inside), 1 mm, in the part of the brain where white matter hyperintensities occur.
        ventricle_push: Where a point moves (3 channels) as the ventricles grow by 1 mm, 2 mm.
    """

    tissues: Field
    brain_distance: Field
    ventricle_distance: Field
    ventricle_push: Field

    def tissues_around_ventricles(self) -> tuple[FloatArray, FloatArray]:
        """Return the probabilities of grey and white matter on the grid of `ventricle_distance`."""
        box = _box(self.ventricle_distance.origin, self.ventricle_distance.values.shape[1:], self.tissues.origin)
        grey, white = self.tissues.values.numpy()
        return grey[box], white[box]


@lru_cache(maxsize=1)
def load_template() -> Template:
    """Read the maps and derive the distances; once per process, about two seconds."""
    brightness, grey, white, origin = _read_maps()
    brain = brightness > 0
    (left, right), (back, front), (bottom, top) = _AROUND_VENTRICLES
    corner = (left, back, bottom)
    box = _box(corner, (round(right - left), round(front - back), round(top - bottom)), origin)
    ventricles = _connected_to((1 - grey - white > 0.5)[box], _INSIDE_LATERAL_VENTRICLE, corner)
    distance = _signed_distance(ventricles, smoothing=1.0)
    grey[box], white[box] = _without_ventricle_rim(grey[box], white[box], brightness[box], distance)
    return Template(
        tissues=field_of(grey, white, origin=origin, spacing=1.0),
        brain_distance=_brain_distance(brain, origin),
        ventricle_distance=field_of(distance, origin=corner, spacing=1.0),
        ventricle_push=_ventricle_push(distance, corner),
    )


def _read_maps() -> tuple[FloatArray, FloatArray, FloatArray, Vector]:
    from nilearn.datasets import load_mni152_gm_template, load_mni152_template, load_mni152_wm_template

    loaders = (load_mni152_template, load_mni152_gm_template, load_mni152_wm_template)
    images = [loader(resolution=1) for loader in loaders]
    brightness, grey, white = (np.asarray(image.dataobj, dtype=np.float32) for image in images)
    x, y, z = (float(offset) for offset in images[0].affine[:3, 3])
    return brightness / brightness.max(), grey, white, (x, y, z)


def _box(corner: Vector, shape: tuple[int, ...], origin: Vector) -> Box:
    """Return the voxels from a corner in mm on, on a grid of 1 mm that begins at `origin`."""
    x, y, z = _voxel(corner, origin)
    return slice(x, x + shape[0]), slice(y, y + shape[1]), slice(z, z + shape[2])


def _voxel(point: Vector, origin: Vector) -> tuple[int, int, int]:
    """Return the voxel of a point in mm, on a grid of 1 mm that begins at `origin`."""
    return round(point[0] - origin[0]), round(point[1] - origin[1]), round(point[2] - origin[2])


def _connected_to(mask: NDArray[np.bool_], point: Vector, origin: Vector) -> NDArray[np.bool_]:
    """Return the part of a mask that is connected with a point in mm, by faces."""
    labels, _ = ndimage.label(mask)
    return np.asarray(labels == labels[_voxel(point, origin)])


def _signed_distance(mask: NDArray[np.bool_], *, smoothing: float, spacing: float = 1.0) -> FloatArray:
    """Distance to the surface of a mask in mm, negative inside, smoothed over `smoothing` voxels."""
    outside, inside = ndimage.distance_transform_edt(~mask), ndimage.distance_transform_edt(mask)
    distance = np.where(mask, 0.5 - inside, outside - 0.5).astype(np.float32) * spacing
    return np.asarray(ndimage.gaussian_filter(distance, smoothing), dtype=np.float32)


def _without_ventricle_rim(
    grey: FloatArray, white: FloatArray, brightness: FloatArray, distance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Undo the averaging artefact that calls the mix of white matter and fluid around the ventricles grey."""
    thick = ndimage.grey_opening(grey, size=5)  # grey matter without layers thinner than 5 mm
    rim = np.where(distance < 5, grey - thick, 0).astype(np.float32)
    share = np.clip((brightness - _CSF_BRIGHTNESS) / (_WHITE_BRIGHTNESS - _CSF_BRIGHTNESS), 0, 1)
    return grey - rim, (white + rim * share).astype(np.float32)


def _brain_distance(brain: NDArray[np.bool_], origin: Vector) -> Field:
    """Distance to the brain on a 2 mm grid that also has room for the face and the neck."""
    margin = ((2, 2), (6, 32), (98, 10))  # mm: behind and before, below and above
    padded = np.pad(brain, margin)[::2, ::2, ::2]
    filled = ndimage.binary_closing(padded, iterations=2)
    whole = ndimage.binary_opening(filled, iterations=2)
    corner = (origin[0] - margin[0][0], origin[1] - margin[1][0], origin[2] - margin[2][0])
    return field_of(_signed_distance(whole, smoothing=1.0, spacing=2.0), origin=corner, spacing=2.0)


def _ventricle_push(distance: FloatArray, origin: Vector) -> Field:
    """Return the direction away from the ventricles, fading with the distance from their walls; on a 2 mm grid."""
    coarse = ndimage.gaussian_filter(distance, 1.0)[::2, ::2, ::2]
    away = np.stack(np.gradient(coarse, 2.0))
    return field_of(*(away * np.exp(-np.abs(coarse) / _PUSH_REACH)), origin=origin, spacing=2.0)
