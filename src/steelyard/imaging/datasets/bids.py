"""BIDS datasets, raw or derivative: which scans and masks belong to each subject."""

import gzip
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.errors import UserError, reason
from steelyard.files.records import read_object
from steelyard.files.regular_files import open_regular
from steelyard.imaging.datasets.bids_names import NIFTI_ENDINGS, last_part, loose_entities, stem
from steelyard.imaging.datasets.subjects import (
    BadNameError,
    Dataset,
    Subject,
    SubjectDraft,
    bids_label,
    build_dataset,
    is_folder,
    leads_in_circle,
)

GENERATOR, PREDICTOR = "steelyard preprocess", "steelyard predict"
"""The names under which derivatives of steelyard are stored; they are never read as somebody's masks."""

SUFFIX = {"flair": "FLAIR", "t1": "T1w"}
"""The BIDS suffix of each contrast."""

_MASK_LABELS = {"wmh": ("wmh", "lesion"), "brain": ("brain",)}
_ROLES = ("flair", "t1", "wmh", "brain")
_ROLE_ENTITIES = ("label", "desc")  # these tell masks from each other; choosing one must not drop the others
_PIECE = 2**20  # bytes that are compared at a time


@dataclass(frozen=True)
class _Entity:
    """A part of a BIDS file name, such as `run-1`."""

    key: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "_Entity":
        key, _, value = text.partition("-")
        if not (key and value):
            raise UserError(f"an entity is chosen as key-value, such as run-1; got {text!r}.")
        return cls(key, value)


def read_bids(root: Path, *, choose: Sequence[str] = (), optional: Collection[str] = ()) -> Dataset:
    """Read a BIDS dataset.

    Args:
        root: The dataset, raw (masks are looked for in `derivatives/`) or derivative (masks lie beside the scans).
        choose: Entities that decide which of several files is meant, such as `run-1` or `acq-3D`.
        optional: Roles, such as `brain`, that are not needed: an ambiguity about them is a note, not a fault.

    Raises:
        UserError: The folder cannot be read or holds no subject.
    """
    entities = [_Entity.parse(text) for text in choose]
    if not is_folder(root):
        raise UserError(f"{root}: there is no such folder.")
    people = _folders(root, "sub-")
    if not people:
        raise UserError(f"{root}: there is no sub-… folder; this is no BIDS dataset.")
    drafts: list[SubjectDraft] = []
    for person in people:
        name = person.name.removeprefix("sub-")
        subject = Subject(name=name, label=bids_label(name))
        try:
            # All visits of a person or none: one that cannot be read makes the person a fault.
            drafts += [
                _draft_visit(replace(subject, session=session), _images(root, folder), entities, optional)
                for session, folder in _visits(person)
            ]
        except UserError as error:
            problem = str(error).removesuffix(".")
            drafts.append(SubjectDraft(subject, [problem], bad_name=isinstance(error, BadNameError)))
    return build_dataset(root, drafts)


def _visits(person: Path) -> Iterator[tuple[str | None, Path]]:
    """Yield each session of a person and its folder, and what lies outside any session."""
    sessions = _folders(person, "ses-")
    if not sessions or any(map(_is_scan, _niftis(person / "anat"))):
        yield None, person
    for session in sessions:
        yield bids_label(session.name.removeprefix("ses-")), session


def _draft_visit(
    visit: Subject, files: Sequence[Path], entities: Sequence[_Entity], optional: Collection[str]
) -> SubjectDraft:
    """Pick the file for each role, or say what is ambiguous."""
    draft = SubjectDraft(visit)
    chosen: dict[str, Path] = {}
    for role in _ROLES:
        candidates = [path for path in files if _has_role(path, role)]
        candidates = without_twins(_with_entities(candidates, entities))
        if len(candidates) == 1:
            chosen[role] = candidates[0]
        elif candidates:
            remarks = draft.notes if role in optional else draft.problems
            remarks.append(describe_ambiguity(role, candidates) + _advice(candidates))
    draft.subject = replace(visit, **chosen)  # type: ignore[arg-type]
    return draft


def _with_entities(candidates: Sequence[Path], entities: Sequence[_Entity]) -> list[Path]:
    """Return the files that have the chosen entities; where none has, those that do not contradict."""
    remaining = list(candidates)
    for entity in entities:
        matching: list[Path] = []
        silent: list[Path] = []
        for path in remaining:
            value = _entities(path).get(entity.key)
            if value is not None and _without_zeros(value) == _without_zeros(entity.value):
                matching.append(path)
            if value is None or entity.key in _ROLE_ENTITIES:
                silent.append(path)
        remaining = matching or silent
    return remaining


def without_twins(candidates: Sequence[Path]) -> list[Path]:
    """Return the files without each `.nii` whose `.nii.gz` holds the same and is among them."""
    return [path for path in candidates if path.suffix == ".gz" or not _has_twin(path, candidates)]


def describe_ambiguity(role: str, candidates: Sequence[Path]) -> str:
    """Say that several files could play a role."""
    names = [path.name for path in candidates]
    if len(set(names)) < len(names):
        names = [str(path) for path in candidates]
    return f"{len(candidates)} files could be its {role}: {', '.join(names)}"


def _advice(candidates: Sequence[Path]) -> str:
    """Say which option would decide, by an entity that one candidate alone has."""
    entities: list[tuple[str, str]] = []
    for path in candidates:
        entities += _entities(path).items()
    for key, value in entities:
        if entities.count((key, value)) == 1:
            return f"; choose one, such as --choose {key}-{value}"
    return "; keep one of them"


def _has_twin(plain: Path, candidates: Sequence[Path]) -> bool:
    """Whether the same bytes, compressed, are among the candidates."""
    packed = plain.with_name(f"{plain.name}.gz")
    if packed not in candidates:
        return False
    try:
        with open_regular(plain) as first, open_regular(packed) as file, gzip.GzipFile(fileobj=file) as second:
            # Piece by piece: what a file unpacks to may be far larger than the plain one.
            while piece := first.read(_PIECE):
                if second.read(_PIECE) != piece:
                    return False
            return not second.read(1)
    except (OSError, EOFError, zlib.error):
        return False


def _is_scan(path: Path) -> bool:
    return any(_has_role(path, role) for role in SUFFIX)


def _has_role(path: Path, role: str) -> bool:
    """Whether a name says that a file is a scan of this contrast, or a mask of this kind."""
    entities = _entities(path)
    suffix = last_part(path.name)
    if role in SUFFIX:
        return suffix == SUFFIX[role] and entities.get("desc", "preproc") == "preproc"
    # `desc-supplied` is the copy of a manual brain mask that `steelyard preprocess` writes beside its own.
    if suffix != "mask" or entities.get("desc") == "supplied":
        return False
    label = entities.get("label", entities.get("desc", ""))
    return label.casefold() in _MASK_LABELS[role]


def _without_zeros(value: str) -> str:
    """Return a number without leading zeros: `run-01` is `run-1`."""
    return str(int(value)) if value.isascii() and value.isdigit() else value


def _entities(path: Path) -> dict[str, str]:
    """Return the entities of a file name: `sub-1_run-2_T1w.nii` has sub and run."""
    return loose_entities(stem(path.name).split("_"))


def _images(root: Path, visit: Path) -> list[Path]:
    """Return the NIfTI files of a visit: the dataset's own, then the masks of its derivatives."""
    images = _niftis(visit / "anat")
    derivatives = root / "derivatives"
    if not derivatives.is_dir():
        return images
    for pipeline in (derivatives, *_listed(derivatives, Path.is_dir)):
        if written_by(pipeline, GENERATOR, PREDICTOR):
            continue
        files = _niftis(pipeline / visit.relative_to(root) / "anat")
        images += [path for path in files if stem(path.name).endswith("_mask")]
    return images


def written_by(dataset: Path, *generators: str) -> bool:
    """Whether a folder says that one of these commands wrote it."""
    generated_by = read_object(dataset / "dataset_description.json").get("GeneratedBy")
    if not isinstance(generated_by, list):
        return False
    return any(isinstance(entry, dict) and entry.get("Name") in generators for entry in generated_by)


def _niftis(folder: Path) -> list[Path]:
    return _listed(folder, lambda path: path.name[0] != "." and path.name.endswith(NIFTI_ENDINGS))


def _folders(folder: Path, prefix: str) -> list[Path]:
    return _listed(folder, lambda path: path.name.startswith(prefix) and _may_be_folder(path))


def _may_be_folder(path: Path) -> bool:
    """Whether this is a folder; a link that leads nowhere may have been, and fails when it is read."""
    try:
        return path.is_dir() or not path.exists()
    except OSError:
        return True


def _listed(folder: Path, condition: Callable[[Path], bool]) -> list[Path]:
    """Return what lies in a folder and fulfils a condition, sorted; nothing where there is no folder."""
    try:
        if folder.is_dir():
            return sorted(filter(condition, folder.iterdir()))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read, {reason(error)}.") from error
    if folder.is_symlink() or leads_in_circle(folder):
        raise BadNameError(f"{folder}: is a link that leads to no folder.")
    return []
