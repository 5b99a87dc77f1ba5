"""Which subjects there are, and which scans and masks belong to each: BIDS datasets, raw or derivative."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from steelyard.errors import UserError
from steelyard.imaging.writing import reason

GENERATOR = "steelyard preprocess"
"""Under this name the preprocessed derivatives are kept; they are never read as somebody's masks."""

SUFFIX = {"flair": "FLAIR", "t1": "T1w"}
"""The BIDS suffix of each contrast."""

_MASK_LABELS = {"wmh": ("wmh", "lesion"), "brain": ("brain",)}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One visit of one person: what is to be processed together.

    Args:
        name: As the folder or pattern gave it; may hold spaces and any letters.
        label: The same in the letters and digits that BIDS allows.
        session: BIDS session, if the dataset has sessions.
        flair: The FLAIR scan, if there is one.
        t1: The T1w scan, if there is one.
        wmh: Manual mask of the white matter hyperintensities, if there is one.
        brain: Brain mask, if there is one.
    """

    name: str
    label: str
    session: str | None = None
    flair: Path | None = None
    t1: Path | None = None
    wmh: Path | None = None
    brain: Path | None = None

    @property
    def key(self) -> str:
        """The start of every file name of this visit: `sub-01` or `sub-01_ses-02`."""
        return f"sub-{self.label}" + (f"_ses-{self.session}" if self.session else "")

    @property
    def folder(self) -> Path:
        """Where its files lie within a dataset."""
        return Path(f"sub-{self.label}", *([f"ses-{self.session}"] if self.session else []), "anat")

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file there is."""
        return tuple(path for path in (self.flair, self.t1, self.wmh, self.brain) if path is not None)


@dataclass(frozen=True)
class Remark:
    """What the user should know about one subject before work starts."""

    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


@dataclass(frozen=True)
class Dataset:
    """The subjects that can be worked on, and what was found about the rest.

    Args:
        root: The folder that was read.
        subjects: Those with at least one scan and no doubt about which.
        faults: Subjects that cannot be worked on, and why.
        notes: What is missing, though work can go on without.
    """

    root: Path
    subjects: tuple[Subject, ...]
    faults: tuple[Remark, ...]
    notes: tuple[Remark, ...]


def read_bids(root: Path, *, choose: Sequence[str] = ()) -> Dataset:
    """Read a BIDS dataset.

    Args:
        root: The dataset, raw (masks are looked for in `derivatives/`) or derivative (masks lie beside the scans).
        choose: Entities that settle which of several files is meant, such as `run-1` or `acq-3D`.

    Raises:
        UserError: The folder cannot be read or holds no subject.
    """
    wanted = [_entity(text) for text in choose]
    visits: list[tuple[Subject, list[Path]]] = []
    for folder in _folders(root, "sub-"):
        name = folder.name.removeprefix("sub-")
        person = Subject(name=name, label=bids_label(name))
        sessions = _folders(folder, "ses-")
        visits += [
            (replace(person, session=bids_label(session.name.removeprefix("ses-"))), _images(root, session))
            for session in sessions
        ]
        if not sessions:
            visits.append((person, _images(root, folder)))
    if not visits:
        raise UserError(f"{root}: there is no sub-… folder; this is no BIDS dataset.")
    found = [_resolve(visit, files, wanted) for visit, files in visits]
    return assemble(root, found)


def assemble(root: Path, found: Iterable[tuple[Subject, Sequence[str]]]) -> Dataset:
    """Sort subjects into those that can be worked on and those that cannot, duplicates among them."""
    subjects: list[Subject] = []
    faults: list[Remark] = []
    notes: list[Remark] = []
    seen: dict[str, Subject] = {}
    for subject, doubts in found:
        first = seen.setdefault(subject.key.casefold(), subject)
        if first is not subject:
            doubts = [f"the subject is there twice: {first.name!r} and {subject.name!r} are both {subject.key}"]
        elif not doubts and subject.flair is None and subject.t1 is None:
            doubts = ["there is neither a FLAIR nor a T1w scan"]
        faults += [Remark(subject.key, doubt) for doubt in doubts]
        if not doubts:
            subjects.append(subject)
            notes += [Remark(subject.key, text) for text in _missing(subject)]
    return Dataset(root, tuple(subjects), tuple(faults), tuple(notes))


def bids_label(name: str) -> str:
    """Return a name in the letters and digits BIDS allows; a name without any becomes a short digest.

    >>> bids_label("01"), bids_label("José Núñez-2")
    ('01', 'JoseNunez2')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    label = re.sub(r"[^0-9a-zA-Z]", "", plain)
    lost = sum(letter.isalnum() for letter in unicodedata.normalize("NFC", name)) - len(label)
    if label and lost <= 0:
        return label
    return label + sha256(unicodedata.normalize("NFC", name).encode()).hexdigest()[:6]


def _missing(subject: Subject) -> Iterator[str]:
    if subject.flair is None:
        yield "no FLAIR; the T1w scan is processed alone"
    if subject.t1 is None:
        yield "no T1w; the FLAIR scan is processed alone"
    if subject.wmh is None:
        yield "no lesion mask"


def _resolve(visit: Subject, files: Sequence[Path], wanted: Sequence[tuple[str, str]]) -> tuple[Subject, Sequence[str]]:
    """Pick the file for each role, or say what is ambiguous."""
    doubts: list[str] = []
    chosen: dict[str, Path] = {}
    for role in ("flair", "t1", "wmh", "brain"):
        candidates = [path for path in files if _plays(path, role)]
        candidates = [path for path in candidates if _agrees(path, wanted)]
        if len(candidates) > 1:
            names = ", ".join(path.name for path in candidates)
            doubts.append(f"{len(candidates)} files could be its {role}: {names}; choose one by its entities")
        elif candidates:
            chosen[role] = candidates[0]
    return replace(visit, **chosen), doubts  # type: ignore[arg-type]


def _plays(path: Path, role: str) -> bool:
    entities = _entities(path)
    suffix = _stem(path).rsplit("_", 1)[-1]
    if role in SUFFIX:
        return suffix == SUFFIX[role] and entities.get("desc", "preproc") == "preproc"
    if suffix != "mask" or entities.get("desc") == "supplied":
        return False
    return entities.get("label", entities.get("desc", "")).casefold() in _MASK_LABELS[role]


def _agrees(path: Path, wanted: Sequence[tuple[str, str]]) -> bool:
    entities = _entities(path)
    return all(_number(entities.get(key, value)) == _number(value) for key, value in wanted)


def _number(value: str) -> str:
    return str(int(value)) if value.isascii() and value.isdigit() else value


def _entities(path: Path) -> dict[str, str]:
    parts = (part.partition("-") for part in _stem(path).split("_"))
    return {key: value for key, dash, value in parts if dash}


def _entity(text: str) -> tuple[str, str]:
    key, dash, value = text.partition("-")
    if not (key and dash and value):
        raise UserError(f"an entity is chosen as key-value, such as run-1; got {text!r}.")
    return key, value


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".nii")


def _images(root: Path, visit: Path) -> list[Path]:
    """Return the NIfTI files of a visit: the dataset's own, then the masks of its derivatives."""
    place = visit.relative_to(root)
    own = _niftis(visit / "anat")
    pipelines = [root / "derivatives", *_folders(root / "derivatives", "")]
    foreign = [
        path
        for pipeline in pipelines
        if not _is_ours(pipeline)
        for path in _niftis(pipeline / place / "anat")
        if _stem(path).endswith("_mask")
    ]
    return own + foreign


def _is_ours(dataset: Path) -> bool:
    try:
        content = json.loads((dataset / "dataset_description.json").read_text())
        return any(by.get("Name") == GENERATOR for by in content.get("GeneratedBy", []))
    except (OSError, ValueError, AttributeError):
        return False


def _niftis(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in _listed(folder) if re.search(r"\.nii(\.gz)?$", path.name) and path.name[0] != "."]


def _folders(folder: Path, prefix: str) -> list[Path]:
    if prefix and not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder.")
    if not folder.is_dir():
        return []
    return [path for path in _listed(folder) if path.name.startswith(prefix) and path.is_dir()]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder}: cannot be read, {reason(error)}.") from error
