"""Which subjects there are, and which scans and masks belong to each: BIDS datasets, raw or derivative."""

import errno
import gzip
import re
import unicodedata
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from steelyard.errors import UserError, reason
from steelyard.files.records import read_object
from steelyard.files.regular_files import open_regular

GENERATOR, PREDICTOR = "steelyard preprocess", "steelyard predict"
"""Under these names our derivatives are kept; they are never read as somebody's masks."""

SUFFIX = {"flair": "FLAIR", "t1": "T1w"}
"""The BIDS suffix of each contrast."""

_MASK_LABELS = {"wmh": ("wmh", "lesion"), "brain": ("brain",)}
_PIECE = 2**20  # bytes that are compared at a time
_ROLE_ENTITIES = ("label", "desc")  # these tell masks from each other; choosing one must not drop the others


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
    """What the user should know about one subject before work starts.

    Args:
        subject: Its name in the derivatives.
        text: What it is.
        bad_name: Whether it is about a name that leads to no file: not UTF-8, or a link that leads nowhere.
    """

    subject: str
    text: str
    bad_name: bool = False

    def __str__(self) -> str:
        text = f"{self.subject}: {self.text}"
        return text.encode(errors="replace").decode()  # what is not UTF-8 cannot be written to any page


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


@dataclass
class Found:
    """A subject as it was read, with what keeps it from being worked on and what does not."""

    subject: Subject
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad_name: bool = False


class BadNameError(UserError):
    """A name that leads to no file: it is not UTF-8, or a link that leads nowhere."""


def check_name(path: Path, root: Path) -> None:
    """Refuse a file whose name cannot be written down, or whose links lead in a circle.

    Args:
        path: The file.
        root: The folder that it was found in, whose own name does not matter.

    Raises:
        BadNameError: In one line that names the file.
    """
    try:
        str(path.relative_to(root)).encode()
    except UnicodeEncodeError:
        raise BadNameError(f"{path}: the name is not UTF-8; rename it.") from None
    if leads_in_circle(path):
        raise BadNameError(f"{path}: is a link that leads in a circle.")


def leads_in_circle(path: Path) -> bool:
    """Whether the links of a path lead back to themselves."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def is_folder(path: Path) -> bool:
    """Whether a path that the user gave is a folder.

    Raises:
        UserError: The system does not tell.
    """
    try:
        return path.is_dir()
    except OSError as error:
        raise UserError(f"{path}: cannot be read, {reason(error)}.") from error


def read_bids(root: Path, *, choose: Sequence[str] = (), optional: Collection[str] = ()) -> Dataset:
    """Read a BIDS dataset.

    Args:
        root: The dataset, raw (masks are looked for in `derivatives/`) or derivative (masks lie beside the scans).
        choose: Entities that settle which of several files is meant, such as `run-1` or `acq-3D`.
        optional: Roles, such as `brain`, that are not needed: what is ambiguous about them is a note, no fault.

    Raises:
        UserError: The folder cannot be read or holds no subject.
    """
    wanted = [_entity(text) for text in choose]
    if not is_folder(root):
        raise UserError(f"{root}: there is no such folder.")
    people = _folders(root, "sub-")
    if not people:
        raise UserError(f"{root}: there is no sub-… folder; this is no BIDS dataset.")
    found: list[Found] = []
    for person in people:
        name = person.name.removeprefix("sub-")
        subject = Subject(name=name, label=bids_label(name))
        try:
            visits = [(replace(subject, session=session), folder) for session, folder in _visits(person)]
            found += [_resolve(visit, _images(root, folder), wanted, optional) for visit, folder in visits]
        except UserError as error:
            text = str(error).removesuffix(".")
            found.append(Found(subject, [text], bad_name=isinstance(error, BadNameError)))
    return assemble(root, found)


def _visits(person: Path) -> Iterator[tuple[str | None, Path]]:
    """Yield each session of a person and its folder, and what lies outside any session."""
    sessions = _folders(person, "ses-")
    if not sessions or any(_plays(path, role) for path in _niftis(person / "anat") for role in SUFFIX):
        yield None, person
    for session in sessions:
        yield bids_label(session.name.removeprefix("ses-")), session


def assemble(root: Path, found: Iterable[Found]) -> Dataset:
    """Sort subjects into those that can be worked on and those that cannot, duplicates among them."""
    subjects: list[Subject] = []
    faults: list[Remark] = []
    notes: list[Remark] = []
    seen: dict[str, Subject] = {}
    for one in found:
        _look_at_names(root, one)
        subject, doubts = one.subject, one.doubts
        first = seen.setdefault(subject.key.casefold(), subject)
        if first is not subject:
            doubts = [f"the subject is there twice: {first.name!r} and {subject.name!r} are both {subject.key}"]
        elif not doubts and subject.flair is None and subject.t1 is None:
            doubts = ["there is neither a FLAIR nor a T1w scan"]
        if doubts:
            faults.append(Remark(subject.key, "; ".join(doubts), one.bad_name))
        else:
            subjects.append(subject)
            notes += [Remark(subject.key, text) for text in (*_missing(subject), *one.notes)]
    return Dataset(root, tuple(subjects), tuple(faults), tuple(notes))


def _look_at_names(root: Path, found: Found) -> None:
    try:
        for path in found.subject.files:
            check_name(path, root)
    except BadNameError as error:
        found.doubts.append(str(error).removesuffix("."))
        found.bad_name = True


def bids_label(name: str) -> str:
    """Return a name in the letters and digits BIDS allows; a name without any becomes a short digest.

    >>> bids_label("01"), bids_label("José Núñez-2")
    ('01', 'JoseNunez2')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    label = re.sub(r"[^0-9a-zA-Z]", "", plain)
    composed = unicodedata.normalize("NFC", name)
    # Python stands lone surrogates for the bytes of a name that is not UTF-8; they may have been letters.
    lost = sum(letter.isalnum() or unicodedata.category(letter) == "Cs" for letter in composed) - len(label)
    if label and lost <= 0:
        return label
    return label + sha256(composed.encode(errors="surrogatepass")).hexdigest()[:6]


def _missing(subject: Subject) -> Iterator[str]:
    if subject.flair is None:
        yield "no FLAIR; the T1w scan is processed alone"
    if subject.t1 is None:
        yield "no T1w; the FLAIR scan is processed alone"
    if subject.wmh is None:
        yield "no lesion mask"


def _resolve(
    visit: Subject, files: Sequence[Path], wanted: Sequence[tuple[str, str]], optional: Collection[str]
) -> Found:
    """Pick the file for each role, or say what is ambiguous."""
    found = Found(visit)
    chosen: dict[str, Path] = {}
    for role in ("flair", "t1", "wmh", "brain"):
        candidates = settle([path for path in files if _plays(path, role)], wanted)
        if len(candidates) > 1:
            place = found.notes if role in optional else found.doubts
            place.append(ambiguity(role, candidates) + _advice(candidates))
        elif candidates:
            chosen[role] = candidates[0]
    found.subject = replace(visit, **chosen)  # type: ignore[arg-type]
    return found


def settle(candidates: Sequence[Path], wanted: Sequence[tuple[str, str]] = ()) -> list[Path]:
    """Return the files that are left once the wanted entities and twins (`.nii` of a `.nii.gz`) are settled."""
    left = list(candidates)
    for key, value in wanted:
        holding = [path for path in left if _number(_entities(path).get(key, "")) == _number(value)]
        silent = [path for path in left if key in _ROLE_ENTITIES or key not in _entities(path)]
        left = holding or silent
    return [path for path in left if path.suffix == ".gz" or not _has_twin(path, left)]


def ambiguity(role: str, candidates: Sequence[Path]) -> str:
    """Say that several files could play a role."""
    alike = len({path.name for path in candidates}) < len(candidates)
    names = ", ".join(str(path) if alike else path.name for path in candidates)
    return f"{len(candidates)} files could be its {role}: {names}"


def _advice(candidates: Sequence[Path]) -> str:
    """Say which option would settle it, by an entity that one candidate alone has."""
    held = [entity for path in candidates for entity in _entities(path).items()]
    alone = [f"--choose {key}-{value}" for key, value in held if held.count((key, value)) == 1]
    return f"; choose one, such as {alone[0]}" if alone else "; keep one of them"


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


def _plays(path: Path, role: str) -> bool:
    entities = _entities(path)
    suffix = _stem(path).rsplit("_", 1)[-1]
    if role in SUFFIX:
        return suffix == SUFFIX[role] and entities.get("desc", "preproc") == "preproc"
    if suffix != "mask" or entities.get("desc") == "supplied":
        return False
    return entities.get("label", entities.get("desc", "")).casefold() in _MASK_LABELS[role]


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
    derivatives = root / "derivatives"
    pipelines = [derivatives, *_listed(derivatives, Path.is_dir)] if derivatives.is_dir() else []
    foreign = [
        path
        for pipeline in pipelines
        if not written_by(pipeline, GENERATOR, PREDICTOR)
        for path in _niftis(pipeline / place / "anat")
        if _stem(path).endswith("_mask")
    ]
    return own + foreign


def written_by(dataset: Path, *generators: str) -> bool:
    """Whether a folder says that one of these commands wrote it."""
    generated_by = read_object(dataset / "dataset_description.json").get("GeneratedBy")
    if not isinstance(generated_by, list):
        return False
    return any(isinstance(entry, dict) and entry.get("Name") in generators for entry in generated_by)


def _niftis(folder: Path) -> list[Path]:
    return _listed(folder, lambda path: path.name[0] != "." and path.name.endswith((".nii", ".nii.gz")))


def _folders(folder: Path, prefix: str) -> list[Path]:
    return _listed(folder, lambda path: path.name.startswith(prefix) and _may_be_folder(path))


def _may_be_folder(path: Path) -> bool:
    """Whether this is a folder; a link that leads nowhere may have been, which is said when it is read."""
    try:
        return path.is_dir() or not path.exists()
    except OSError:
        return True


def _listed(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    try:
        if folder.is_dir():
            return sorted(filter(wanted, folder.iterdir()))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read, {reason(error)}.") from error
    if folder.is_symlink() or leads_in_circle(folder):
        raise BadNameError(f"{folder}: is a link that leads to no folder.")
    return []
