"""Slices for training, held in memory so that an epoch never waits for disk."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BytesIO
from json import dumps
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError, reason
from steelyard.files.atomic import remove, write_bytes
from steelyard.files.regular_files import digest, open_regular
from steelyard.imaging.datasets.prepared import read_volumes
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.imaging.runs.slice_settings import SliceChoice
from steelyard.imaging.scans.volumes import canonical

# Part of every cache key. Raise it when the same files and choice give other slices: a change to `_cut`, to
# `SliceChoice.pick`, to `Frame.place` or `Placement` in scans/frame.py, or to how files are read into volumes.
_CUT_REVISION = 1


@dataclass(frozen=True)
class SubjectSlices:
    """The slices of one subject.

    Args:
        key: The name of the subject, such as `sub-01`.
        images: By contrast (`flair`, `t1`), 32-bit floats of slices × rows × columns; anterior is up.
        wmh: Lesion mask of the same shape, if there is one.
        brain: Brain mask of the same shape.
        indices: Which slices of the volume these are.
    """

    key: str
    images: dict[str, NDArray[np.float32]]
    wmh: NDArray[np.bool_] | None
    brain: NDArray[np.bool_]
    indices: range


@dataclass(frozen=True)
class SliceSet(Sequence[SubjectSlices]):
    """The slices of a cohort, all in memory."""

    subjects: tuple[SubjectSlices, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.subjects[index]

    def __len__(self) -> int:
        return len(self.subjects)

    def stack(self, contrast: str) -> tuple[NDArray[np.float32], NDArray[np.float32], list[str]]:
        """Return images and lesion masks of one contrast as N×1×rows×columns, and the subject of each slice.

        Subjects without the contrast or without a lesion mask are left out.
        """
        images, masks, owners = [], [], []
        for subject in self.subjects:
            if contrast in subject.images and subject.wmh is not None:
                images.append(subject.images[contrast])
                masks.append(subject.wmh)
                owners += [subject.key] * len(subject.indices)
        if not images:
            raise UserError(f"no subject has both a {contrast} scan and a lesion mask.")
        if len({image.shape[1:] for image in images}) > 1:
            raise UserError("the slices differ in size; give the frame a shape to crop or pad them to.")
        return np.concatenate(images)[:, None], np.concatenate(masks)[:, None].astype(np.float32), owners


def load_slices(dataset: Dataset, choice: SliceChoice | None = None, *, cache: Path | None = None) -> SliceSet:
    """Read the chosen slices of every subject of a preprocessed dataset.

    Args:
        dataset: As `read_bids` returns it for the derivatives of `steelyard preprocess`.
        choice: Which slices; default: the paper's five.
        cache: Folder that keeps the slices between runs, so that whole volumes are unpacked only once.

    Raises:
        UserError: A file is unusable or a subject has too few slices; the message names it.
    """
    choice = choice or SliceChoice()
    return SliceSet(tuple(_load_subject(subject, choice, cache) for subject in dataset.subjects))


def _load_subject(subject: Subject, choice: SliceChoice, cache: Path | None) -> SubjectSlices:
    """Return a subject's slices from the cache, or cut them and add them to it."""
    if cache is None:
        return _cut(subject, choice)
    cache_key = _cache_key(subject, choice)
    path = cache / f"{subject.key}-{cache_key}.npz"
    if path.is_file():
        try:
            return _unpack(subject, path)
        except Exception:  # any bytes may be in the file, and numpy's reader raises whatever they lead to
            remove(path)
    slices = _cut(subject, choice)
    # If a file changed while it was read, nobody knows which content was cut: it is not kept.
    if _cache_key(subject, choice) == cache_key:
        write_bytes(path, _pack(slices))
    return slices


def _cut(subject: Subject, choice: SliceChoice) -> SubjectSlices:
    """Read a subject's volumes and cut the chosen slices out of them."""
    volumes = read_volumes(subject)
    brain = canonical(volumes.brain)
    try:
        indices = choice.pick(brain.voxels)
    except UserError as error:
        raise UserError(f"{subject.files[0]}: {error}.") from error
    placement = choice.frame.place(brain)
    wmh = None
    if volumes.wmh is not None:
        wmh = placement.cut_mask(canonical(volumes.wmh).voxels, indices)
    images = {contrast: placement.cut(canonical(scan).voxels, indices) for contrast, scan in volumes.scans.items()}
    return SubjectSlices(subject.key, images, wmh, placement.cut_mask(brain.voxels, indices), indices)


def _cache_key(subject: Subject, choice: SliceChoice) -> str:
    """Return a digest that changes with the subject's files, the choice of slices or the revision of the cut.

    Only the content of a file is reliable. Size and time can be those of another content (`cp -p`, `touch -r`, rsync);
    clocks tick too slowly to separate two writes, and can be set back; inodes are used again. The bytes on disk are
    hashed without unpacking them, which takes a small part of the time of a cut.
    """
    files = [(path.name, _file_digest(path)) for path in subject.files]
    return sha256(dumps([_CUT_REVISION, files, asdict(choice)]).encode()).hexdigest()[:16]


def _file_digest(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read, {reason(error)}.") from error


def _pack(slices: SubjectSlices) -> bytes:
    """Return slices as the bytes of an .npz file."""
    arrays: dict[str, Any] = {
        "brain": slices.brain,
        "indices": np.array([slices.indices.start, slices.indices.stop]),
        **slices.images,
    }
    if slices.wmh is not None:
        arrays["wmh"] = slices.wmh
    packed = BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def _unpack(subject: Subject, path: Path) -> SubjectSlices:
    """Return the slices in a file of the cache.

    Raises:
        Exception: Of any kind, if the file is not as `_pack` made it.
    """
    with open_regular(path) as stream:
        with ZipFile(stream) as archive:
            if any(entry.compress_type != ZIP_STORED for entry in archive.infolist()):
                raise ValueError("numpy does not compress")  # so the file may expand to any size
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            images = {contrast: arrays[contrast] for contrast in ("flair", "t1") if contrast in arrays}
            first, stop = map(int, arrays["indices"])
            slices = SubjectSlices(subject.key, images, arrays.get("wmh"), arrays["brain"], range(first, stop))
    _check(slices, subject)
    return slices


def _check(slices: SubjectSlices, subject: Subject) -> None:
    """Refuse slices that cannot be the subject's."""
    if set(slices.images) != set(subject.scan_paths) or (slices.wmh is None) != (subject.wmh is None):
        raise ValueError("slices of other files")
    for image in slices.images.values():
        _check_array(image, slices, np.float32)
        if not np.isfinite(image).all():
            raise ValueError("an image is not finite")
    _check_array(slices.brain, slices, np.bool_)
    if slices.wmh is not None:
        _check_array(slices.wmh, slices, np.bool_)


def _check_array(array: NDArray[Any], slices: SubjectSlices, dtype: type) -> None:
    if array.dtype != dtype:
        raise ValueError(f"{array.dtype} instead of {dtype.__name__}")
    if array.ndim != 3 or array.shape != slices.brain.shape or len(array) != len(slices.indices):
        raise ValueError("arrays of different shapes")
