"""Subjects with their scans and masks, and a dataset of them: however its files are laid out."""

import errno
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from steelyard.errors import UserError, reason


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
        if self.session is None:
            return f"sub-{self.label}"
        return f"sub-{self.label}_ses-{self.session}"

    @property
    def folder(self) -> Path:
        """Where its files lie within a dataset."""
        if self.session is None:
            return Path(f"sub-{self.label}", "anat")
        return Path(f"sub-{self.label}", f"ses-{self.session}", "anat")

    @property
    def scan_paths(self) -> dict[str, Path]:
        """The scans there are, by contrast; FLAIR first."""
        paths = {"flair": self.flair, "t1": self.t1}
        return {contrast: path for contrast, path in paths.items() if path is not None}

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file there is."""
        paths = (self.flair, self.t1, self.wmh, self.brain)
        return tuple(path for path in paths if path is not None)


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
    """The subjects that can be worked on, and remarks about the rest.

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
class SubjectDraft:
    """A subject while its files are looked for.

    Args:
        subject: What is there so far.
        problems: What keeps it from being worked on.
        notes: What is worth saying and keeps nobody from work.
        bad_name: Whether a name that leads to no file is among the problems.
    """

    subject: Subject
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad_name: bool = False


class BadNameError(UserError):
    """A name that leads to no file: it is not UTF-8, or a link that leads nowhere."""


def build_dataset(root: Path, drafts: Iterable[SubjectDraft]) -> Dataset:
    """Sort subjects into those that can be worked on and those that cannot, duplicates among them."""
    subjects: list[Subject] = []
    faults: list[Remark] = []
    notes: list[Remark] = []
    first_of_key: dict[str, Subject] = {}
    for draft in drafts:
        _check_names(root, draft)
        subject = draft.subject
        # Some file systems do not tell capitals from small letters: neither may two subjects differ in that alone.
        first = first_of_key.setdefault(subject.key.casefold(), subject)
        problems = draft.problems
        if first is not subject:
            problems = [f"the subject is there twice: {first.name!r} and {subject.name!r} are both {subject.key}"]
        elif not problems and subject.flair is None and subject.t1 is None:
            problems = ["there is neither a FLAIR nor a T1w scan"]
        if problems:
            faults.append(Remark(subject.key, "; ".join(problems), draft.bad_name))
            continue
        subjects.append(subject)
        for text in (*_missing(subject), *draft.notes):
            notes.append(Remark(subject.key, text))
    return Dataset(root, tuple(subjects), tuple(faults), tuple(notes))


def _check_names(root: Path, draft: SubjectDraft) -> None:
    try:
        for path in draft.subject.files:
            check_name(path, root)
    except BadNameError as error:
        draft.problems.append(str(error).removesuffix("."))
        draft.bad_name = True


def _missing(subject: Subject) -> Iterator[str]:
    if subject.flair is None:
        yield "no FLAIR; the T1w scan is processed alone"
    if subject.t1 is None:
        yield "no T1w; the FLAIR scan is processed alone"
    if subject.wmh is None:
        yield "no lesion mask"


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


def bids_label(name: str) -> str:
    """Return a name in the letters and digits BIDS allows; one that loses letters by that gets a short digest.

    >>> bids_label("01"), bids_label("José Núñez-2")
    ('01', 'JoseNunez2')
    """
    # NFKD takes accents off their letters: é becomes e and an accent, which ASCII does not hold.
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    label = re.sub(r"[^0-9a-zA-Z]", "", plain)
    composed = unicodedata.normalize("NFC", name)
    letters = sum(map(_may_be_letter, composed))
    if label and letters <= len(label):
        return label
    return label + sha256(composed.encode(errors="surrogatepass")).hexdigest()[:6]


def _may_be_letter(character: str) -> bool:
    """Whether a character is a letter or a digit, or stands for a byte that may have been one.

    Python represents the bytes of a name that is not UTF-8 by lone surrogates, category Cs.
    """
    return character.isalnum() or unicodedata.category(character) == "Cs"
