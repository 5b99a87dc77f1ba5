"""What a training run is: one typed config, and named ones to start from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args

from steelyard.errors import UserError
from steelyard.files.checks import brief, check_choice, check_kind, check_number, check_whole, is_name
from steelyard.imaging.runs.method import EQUAL, MetaTest, Method
from steelyard.imaging.runs.slice_settings import Augmentation, SliceChoice
from steelyard.imaging.scans.frame import Frame

Mixing = Literal["random", "balanced"]
Schedule = Literal["plateau", "one-cycle"]
Rule = Literal["sgd", "adamw"]
T = TypeVar("T")

MOST_THREADS = 256
"""The most threads or processes of a run, whatever the machine: torch crashes with tens of thousands."""

_MOST = 100_000  # of anything that is counted; more is a slip, and memory


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Every setting of a run; the defaults are the paper's.

    Args:
        model: The network's name or import path.
        width: Features at its first level.
        options: Further arguments of a network that is given by import path.
        method: How the domains are weighed; its name is accepted, too.
        prior: The Dirichlet prior of the methods `greedy` and `conservative`.
        meta_test: How the inner loop judges a step: on running (`eval`) or batch statistics.
        every: The inner loop votes on each n-th step.
        slices: Which slices are learned from, at what size.
        batch_size: Slices a step, over all domains and processes.
        mixing: `random` batches of the pool, or `balanced` ones.
        augmentation: How slices are changed; none if not given.
        optimizer: `sgd` with momentum, or `adamw`.
        learning_rate: At the start, or the highest of a one-cycle schedule.
        momentum: Of SGD.
        weight_decay: Of either.
        schedule: `plateau` divides the rate by ten after `patience` epochs without a better validation loss and stops
            after `stop_after`, and the weights of the best epoch are kept; `one-cycle` rises and falls once over all
            epochs, and those of the last are.
        epochs: At most so many; with `one-cycle`, exactly.
        patience: See `schedule`.
        stop_after: See `schedule`.
        seed: Settles initial weights, the order of the data and its changes.
        threads: Of the CPU, at most 256; results are the same to the bit for the same number only.
        devices: How many processes share every batch, at most 256; soft Dice is then of each share.
        domains: What the network must serve.
    """

    model: str = "unet"
    width: int = 64
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Method = EQUAL
    prior: float = 5.0
    meta_test: MetaTest = "eval"
    every: int = 1
    slices: SliceChoice = field(default_factory=SliceChoice)
    batch_size: int = 8
    mixing: Mixing = "random"
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    optimizer: Rule = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "plateau"
    epochs: int = 500
    patience: int = 20
    stop_after: int = 50
    seed: int = 0
    threads: int = 1
    devices: int = 1
    domains: tuple[str, ...] = ("flair", "t1")

    def __post_init__(self) -> None:
        for name, kind in (
            ("mixing", Mixing),
            ("optimizer", Rule),
            ("schedule", Schedule),
            ("meta_test", MetaTest),
        ):
            check_choice(name, getattr(self, name), get_args(kind))
        for name in ("width", "every", "batch_size", "epochs", "patience", "stop_after"):
            check_whole(name, getattr(self, name), 1, _MOST)
        for name in ("threads", "devices"):
            check_whole(name, getattr(self, name), 1, MOST_THREADS)
        for name, lowest in (("learning_rate", 0.0), ("momentum", 0.0), ("weight_decay", 0.0), ("prior", 1.0)):
            check_number(name, getattr(self, name), lowest)
        check_whole("seed", self.seed, 0, 2**31 - 1)
        for name, expected in (("model", str), ("options", dict), ("slices", SliceChoice)):
            check_kind(name, getattr(self, name), expected)
        if self.augmentation is not None:
            check_kind("augmentation", self.augmentation, Augmentation)
        self._check_domains()
        self._parse_method()

    def _check_domains(self) -> None:
        if not isinstance(self.domains, tuple) or not self.domains:
            raise UserError(f"domains must be distinct names, at least one; got {brief(self.domains)}.")
        if not all(is_name(name) for name in self.domains):
            raise UserError(f"domains must be names of 1 to 255 printable characters; got {brief(self.domains)}.")
        if len(set(self.domains)) < len(self.domains):
            raise UserError(f"domains must be distinct names, at least one; got {brief(self.domains)}.")

    def _parse_method(self) -> None:
        """Replace a name, as JSON and the command line hold it, by its method; refuse one that does not fit."""
        name: object = self.method
        if not isinstance(name, Method):
            check_kind("method", name, str)
            object.__setattr__(self, "method", Method.parse(str(name), self.domains))  # the dataclass is frozen
        self.method.check_domains(self.domains)
        if self.method.window is not None and self.prior <= 1:
            raise UserError(f"method {self.method.name}: prior must be above 1; got {self.prior}.")

    @property
    def trained(self) -> tuple[str, ...]:
        """The domains that the method trains on."""
        return self.method.trained_domains(self.domains)

    @property
    def kept(self) -> str:
        """Which epoch's weights the run is judged by: `best` or `last`."""
        return "best" if self.schedule == "plateau" else "last"

    def as_dict(self) -> dict[str, Any]:
        """Return every setting by name, as JSON holds it."""
        return asdict(self) | {"method": self.method.name}

    @classmethod
    def from_dict(cls, held: Mapping[str, Any]) -> "TrainingConfig":
        """Return the config that `as_dict` was made from, after JSON.

        Raises:
            UserError: A setting is unknown or impossible.
        """
        given = dict(held)
        if given.get("augmentation") is not None:
            given["augmentation"] = _built(Augmentation, given["augmentation"])
        if isinstance(given.get("slices"), Mapping):
            choice = dict(given["slices"])
            choice["frame"] = _built(Frame, choice.get("frame", {}))
            given["slices"] = _built(SliceChoice, choice)
        return _built(cls, given)


def _built(kind: type[T], held: object) -> T:
    """Build a config class from what JSON holds; lists become tuples."""
    if not is_dataclass(kind) or not isinstance(held, Mapping):
        raise UserError(f"{kind.__name__} must be an object; got {brief(held)}.")
    names = {setting.name for setting in fields(kind)}
    if unknown := sorted(set(held) - names):
        raise UserError(f"{kind.__name__} has no setting {brief(unknown[0])}.")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in held.items()})
