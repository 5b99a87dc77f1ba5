"""The settings of a run: one typed config."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args

from steelyard.errors import UserError
from steelyard.files.checks import brief, check_choice, check_kind, check_number, check_whole, did_you_mean, is_name
from steelyard.files.records import parse_json
from steelyard.imaging.runs.mask_shift import MaskShift
from steelyard.imaging.runs.method import EQUAL, Method
from steelyard.imaging.runs.method_kinds import MetaTest
from steelyard.imaging.runs.slice_settings import Augmentation, SliceChoice
from steelyard.imaging.scans.frame import Frame

Mixing = Literal["random", "balanced"]
Schedule = Literal["plateau", "one-cycle"]
Rule = Literal["sgd", "adamw"]
T = TypeVar("T")

MOST_THREADS = 256
"""The most threads or processes of a run: torch crashes with tens of thousands."""

_MOST = 100_000  # of anything that is counted; more is a mistake, and takes all memory


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Every setting of a run; the defaults are the paper's.

    Args:
        model: The network's name or import path.
        width: Features at its first level.
        options: Further arguments of the network.
        method: How the domains are weighed; its name is accepted, too.
        prior: The Dirichlet prior of the methods `greedy` and `conservative`.
        meta_test: Whether hypothetical steps are judged on running (`eval`) or batch statistics (`batch`). For the
            method `evidence`, `eval` means the live network's running statistics, the same for every step.
        every: Votes are taken on each n-th step.
        slices: Which slices are learned from, at what size.
        batch_size: Slices per step, over all domains and processes.
        mixing: `random` batches from all slices, or `balanced` ones with equally many of each domain.
        augmentation: How slices are changed at random; `None` leaves them unchanged.
        mask_shift: Domains that learn from wrong masks, for experiments about bad labels; `None` leaves all masks
            unchanged. Training and validation masks are shifted, test masks never.
        optimizer: `sgd` with momentum, or `adamw`.
        learning_rate: At the start, or the highest of a one-cycle schedule.
        momentum: Of SGD.
        weight_decay: Of either optimizer.
        schedule: `plateau` divides the rate by ten after `patience` epochs without a better validation loss, stops
            after `stop_after`, and keeps the weights of the best epoch. `one-cycle` rises and falls once over all
            epochs, and keeps the weights of the last.
        epochs: Maximum number of epochs; with `one-cycle`, the exact number.
        patience: See `schedule`.
        stop_after: See `schedule`.
        seed: Settles initial weights, the order of the data and its augmentation.
        threads: Of the CPU, at most 256; results are bit-identical only for the same number.
        devices: How many processes share every batch, at most 256; each computes soft Dice on its own share.
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
    mask_shift: MaskShift | None = None
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
        choices = {"mixing": Mixing, "optimizer": Rule, "schedule": Schedule, "meta_test": MetaTest}
        for name, kind in choices.items():
            check_choice(name, getattr(self, name), get_args(kind))
        for name in ("width", "every", "batch_size", "epochs", "patience", "stop_after"):
            check_whole(name, getattr(self, name), 1, _MOST)
        for name in ("threads", "devices"):
            check_whole(name, getattr(self, name), 1, MOST_THREADS)
        for name in ("learning_rate", "momentum", "weight_decay"):
            check_number(name, getattr(self, name), 0.0)
        check_number("prior", self.prior, 1.0)
        check_whole("seed", self.seed, 0, 2**31 - 1)
        check_kind("model", self.model, str)
        check_kind("options", self.options, dict)
        check_kind("slices", self.slices, SliceChoice)
        if self.augmentation is not None:
            check_kind("augmentation", self.augmentation, Augmentation)
        self._check_domains()
        if self.mask_shift is not None:
            check_kind("mask_shift", self.mask_shift, MaskShift)
            self.mask_shift.check_domains(self.domains)
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

    def as_dict(self) -> dict[str, Any]:
        """Return every setting by name, as JSON stores it."""
        return asdict(self) | {"method": self.method.name}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "TrainingConfig":
        """Return the config that `as_dict` described, after JSON.

        Raises:
            UserError: A setting is unknown or impossible.
        """
        settings = dict(content)
        if settings.get("augmentation") is not None:
            settings["augmentation"] = _build(Augmentation, settings["augmentation"])
        if settings.get("mask_shift") is not None:
            settings["mask_shift"] = _build(MaskShift, settings["mask_shift"])
        if isinstance(settings.get("slices"), Mapping):
            choice = dict(settings["slices"])
            choice["frame"] = _build(Frame, choice.get("frame", {}))
            settings["slices"] = _build(SliceChoice, choice)
        return _build(cls, settings)


def with_settings(config: TrainingConfig, settings: Sequence[str]) -> TrainingConfig:
    """Return a config with some settings changed, as a user writes them.

    Args:
        config: Where to start from.
        settings: Each as NAME=VALUE, such as `learning_rate=0.001` or `slices.frame.pixel_mm=1.2`.

    Raises:
        UserError: There is no such setting, or the value is impossible.

    >>> with_settings(TrainingConfig(), ["epochs=3"]).epochs
    3
    """
    content = config.as_dict()
    for setting in settings:
        _change(content, setting)
    return TrainingConfig.from_dict(content)


def _change(content: dict[str, Any], setting: str) -> None:
    """Change one setting in a config's dict; the value is JSON, or text."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise UserError(f"--set takes NAME=VALUE, without blanks around the =; got {brief(setting)}.")
    *groups, last = name.split(".")
    settings: Any = content
    for group in groups:
        settings = settings.get(group) if isinstance(settings, dict) else None
    # Options are the arguments of somebody's network, so any name may be new among them.
    is_known = isinstance(settings, dict) and (last in settings or groups == ["options"])
    if not is_known:
        advice = _nearest_setting(name, content)
        raise UserError(f"--set takes NAME=VALUE with the name of a setting; got {brief(setting)}.{advice}")
    try:
        settings[last] = parse_json(text)
    except ValueError:
        settings[last] = text


def _nearest_setting(name: str, content: Mapping[str, Any]) -> str:
    """Return advice for a name that no setting has: the full name of the nearest one.

    >>> _nearest_setting("pixel_mm", TrainingConfig().as_dict())
    ' Did you mean slices.frame.pixel_mm?'
    """
    names = list(_names(content))
    ends = [full_name for full_name in names if full_name.endswith(f".{name}")]
    return f" Did you mean {ends[0]}?" if ends else did_you_mean(name, names)


def _names(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the full name of every setting, such as `slices.frame.pixel_mm`."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            for inner_name in _names(value):
                yield f"{name}.{inner_name}"
        else:
            yield name


def _build(kind: type[T], content: object) -> T:
    """Build a config class from what JSON stores; lists become tuples."""
    if not is_dataclass(kind) or not isinstance(content, Mapping):
        raise UserError(f"{kind.__name__} must be an object; got {brief(content)}.")
    names = {setting.name for setting in fields(kind)}
    settings = {}
    for name, value in content.items():
        if name not in names:
            advice = did_you_mean(name, names) if isinstance(name, str) else ""
            raise UserError(f"{kind.__name__} has no setting {brief(name)}.{advice}")
        settings[name] = tuple(value) if isinstance(value, list) else value
    return kind(**settings)
