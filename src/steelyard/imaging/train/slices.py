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
from steelyard.imaging.datasets.subjects import Dataset, Subject
from steelyard.imaging.runs.slice_settings import SliceChoice
from steelyard.imaging.scans.background import has_zero_background
from steelyard.imaging.scans.volumes import Volume, canonical, read_mask, read_scan


@dataclass(frozen=True)
class SubjectSlices:
    """The slices of one subject.

    Args:
        key: Its name.
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
        """Return images and lesion masks of one contrast as N×1×rows×columns, and whose each slice is.

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
        choice: Which slices; the paper's five if not given.
        cache: Folder that keeps the slices between runs, so that whole volumes are unpacked once only.

    Raises:
        UserError: A file is unusable or a subject has too few slices, in one line that names it.
    """
    choice = choice or SliceChoice()
    return SliceSet(tuple(_load(subject, choice, cache) for subject in dataset.subjects))


def _load(subject: Subject, choice: SliceChoice, cache: Path | None) -> SubjectSlices:
    if cache is None:
        return _cut(subject, choice)
    mark = _mark(subject, choice)
    path = cache / f"{subject.key}-{mark}.npz"
    if path.is_file():
        try:
            return _unpack(subject, path)
        except Exception:  # any bytes may be in the file, and numpy's reader raises whatever they lead to
            remove(path)
    cut = _cut(subject, choice)
    if _mark(subject, choice) == mark:  # or a file changed while it was read, and nobody knows which was cut
        write_bytes(path, _pack(cut))
    return cut


@dataclass(frozen=True)
class SubjectVolumes:
    """The whole volumes of one preprocessed subject, on one grid.

    Args:
        scans: By contrast, `flair` and `t1`.
        wmh: Lesion mask, if there is one.
        brain: Brain mask.
    """

    scans: dict[str, Volume]
    wmh: Volume | None
    brain: Volume


def read_volumes(subject: Subject) -> SubjectVolumes:
    """Read a preprocessed subject.

    Raises:
        UserError: A file is unusable, or scans and masks are on different grids.
    """
    paths = {"flair": subject.flair, "t1": subject.t1}
    scans = {name: read_scan(path) for name, path in paths.items() if path is not None}
    main = next(iter(scans.values()))
    wmh = read_mask(subject.wmh, may_be_empty=True) if subject.wmh is not None else None
    if subject.brain is None and not has_zero_background(main):
        raise UserError(
            f"{subject.files[0]}: there is no brain mask, and the scan is not stripped; preprocess the dataset."
        )
    brain = read_mask(subject.brain) if subject.brain is not None else main.with_voxels(main.voxels != 0)
    for volume in (*scans.values(), brain, *([] if wmh is None else [wmh])):
        if not volume.same_grid(main):
            raise UserError(
                f"{subject.files[0]}: scans and masks of {subject.key} are not on one grid; preprocess them."
            )
    return SubjectVolumes(scans, wmh, brain)


def _cut(subject: Subject, choice: SliceChoice) -> SubjectSlices:
    whole = read_volumes(subject)
    brain = canonical(whole.brain)
    try:
        indices = choice.pick(brain.voxels)
    except UserError as error:
        raise UserError(f"{subject.files[0]}: {error}.") from error
    placement = choice.frame.place(brain)
    return SubjectSlices(
        subject.key,
        {name: placement.cut(canonical(scan).voxels, indices) for name, scan in whole.scans.items()},
        None if whole.wmh is None else placement.cut_mask(canonical(whole.wmh).voxels, indices),
        placement.cut_mask(brain.voxels, indices),
        indices,
    )


def _mark(subject: Subject, choice: SliceChoice) -> str:
    """Return what changes with the files or the choice.

    Of a file its content counts, and nothing else is sound: size and time can be those of another content (`cp -p`,
    `touch -r`, rsync), clocks tick too slowly to tell two writes apart and can be set back, and inodes are used again.
    The bytes on disk are hashed, not unpacked, so that a mark takes a small part of the time of a cut.
    """
    files = [(path.name, _content(path)) for path in subject.files]
    return sha256(dumps([files, asdict(choice)]).encode()).hexdigest()[:16]


def _content(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read, {reason(error)}.") from error


def _pack(cut: SubjectSlices) -> bytes:
    packed = BytesIO()
    arrays: dict[str, Any] = {"brain": cut.brain, "indices": np.array([cut.indices.start, cut.indices.stop])}
    arrays |= cut.images | ({} if cut.wmh is None else {"wmh": cut.wmh})
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
            images = {name: arrays[name] for name in ("flair", "t1") if name in arrays}
            first, stop = (int(bound) for bound in arrays["indices"])
            cut = SubjectSlices(subject.key, images, arrays.get("wmh"), arrays["brain"], range(first, stop))
    _check(cut, subject)
    return cut


def _check(cut: SubjectSlices, subject: Subject) -> None:
    """Refuse slices that cannot be the subject's."""
    paths = {"flair": subject.flair, "t1": subject.t1}
    contrasts = {name for name, path in paths.items() if path is not None}
    if set(cut.images) != contrasts or (cut.wmh is None) != (subject.wmh is None):
        raise ValueError("slices of other files")
    masks = [cut.brain]
    if cut.wmh is not None:
        masks.append(cut.wmh)
    for image in cut.images.values():
        if image.dtype != np.float32 or not np.isfinite(image).all():
            raise ValueError("an image is not of finite 32-bit floats")
    for mask in masks:
        if mask.dtype != np.bool_:
            raise ValueError("a mask is not of booleans")
    for array in (*cut.images.values(), *masks):
        if array.ndim != 3 or array.shape != cut.brain.shape or len(array) != len(cut.indices):
            raise ValueError("arrays of different shapes")
