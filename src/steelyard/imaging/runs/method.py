"""A method: a named rule for the weights of the domains' losses; `method_kinds` lists them.

Methods that vote may be followed by how votes are taken: `+first-order`, `+eval` or `+batch`, `+every-4`.
The paper's names (`F50-T50`, `F10-T90`, `Ours-G-25`, `Ours-C-25`, `Simple-G`, `Simple-C`) are read as aliases.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

from steelyard.errors import UserError
from steelyard.files.checks import brief, did_you_mean
from steelyard.imaging.runs.method_kinds import (
    DESCRIPTIONS,
    EXAMPLES,
    FORMS,
    MODIFIERS,
    STATISTICS,
    Kind,
    MetaTest,
    PlainKind,
    ShiftKind,
    VoteKind,
)

_DECIMALS = 6  # of a percentage
_TOLERANCE = 5e-5  # per cent; how far the sum of the percentages may be from 100
# Other names of methods, as patterns, and the names that they stand for; `_PAPER` leads back to the paper's names.
_ALIASES = {
    r"F(\d{1,3})-T(\d{1,3})": r"fixed-\1-\2",
    r"Ours-G-(\d+)": r"greedy-\1",
    r"Ours-C-(\d+)": r"conservative-\1",
    "Simple-G": "shift-greedy",
    "Simple-C": "shift-conservative",
    **{"GroupDRO": "group-dro", "DWA": "dwa", "UW": "uw", "FAMO": "famo"},
}
_PAPER = {"greedy": "Ours-G", "conservative": "Ours-C", "shift-greedy": "Simple-G", "shift-conservative": "Simple-C"}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A rule for the weights of the domains' losses.

    Attributes:
        kind: The rule.
        percentages: The weights of `fixed`, in per cent, in the order of the domains.
        window: How many votes count, for `greedy` and `conservative`.
        domain: The domain that `only` trains on.
        first_order: Whether votes are taken by the first-order probe instead of the exact one.
        meta_test: The mode in which a hypothetical step is judged; `None` leaves it to the config.
        every: Votes are taken on each n-th step; `None` leaves it to the config.
        label: The name of an `unknown` method, which somebody else's table may hold.
    """

    kind: Kind
    percentages: tuple[float, ...] = ()
    window: int | None = None
    domain: str | None = None
    first_order: bool = False
    meta_test: MetaTest | None = None
    every: int | None = None
    label: str = ""

    @classmethod
    def parse(cls, text: str, domains: Sequence[str] | None = None) -> "Method":
        """Return the method of this name.

        Args:
            text: The name, or the paper's name.
            domains: The domains that it will weigh, to check that it fits them.

        >>> Method.parse("Ours-C-25+first-order+every-4").name
        'conservative-25+first-order+every-4'
        """
        base, *modifiers = text.split("+")
        method = _parse_base(base, text)
        if modifiers and not method.is_voting:
            raise UserError(f"method {text}: {base} does not vote, so {modifiers[0]!r} means nothing.")
        method = _with_modifiers(method, modifiers, text)
        if domains is not None:
            _check_paper_order(base, domains)
            method.check_domains(domains)
        return method

    @classmethod
    def parse_or_unknown(cls, text: str) -> "Method":
        """Return the method of this name, or an `unknown` one: a table of results may hold any name."""
        try:
            return cls.parse(text)
        except UserError:
            return cls(kind="unknown", label=text)

    @property
    def name(self) -> str:
        """The name by which users, folders and tables know the method."""
        modifiers = []
        if self.first_order:
            modifiers.append("first-order")
        if self.meta_test is not None:
            modifiers.append(self.meta_test)
        if self.every is not None:
            modifiers.append(f"every-{self.every}")
        return "+".join([self._base_name, *modifiers])

    @property
    def _base_name(self) -> str:
        if self.kind == "fixed":
            return "-".join(["fixed", *map(_as_text, self.percentages)])
        if self.kind in get_args(VoteKind):
            return f"{self.kind}-{self.window}"
        if self.kind == "only":
            return f"{self.domain}-only"
        if self.kind == "unknown":
            return self.label
        return self.kind

    @property
    def paper_name(self) -> str:
        """The name in the paper's tables; the own name where the paper has none."""
        if self.name == "equal":
            return "F50-T50"
        if self.kind == "fixed" and len(self.percentages) == 2:
            return "F{}-T{}".format(*map(_as_text, self.percentages))
        return self.name.replace(self.kind, _PAPER.get(self.kind, self.kind), 1)

    @property
    def description(self) -> str:
        """What the method does, in a few words.

        >>> Method.parse("greedy-25+every-4").description
        'votes for the domain whose step serves all best; the last 25 count; votes on one step in 4'
        """
        parts = [self._base_description]
        if self.first_order:
            parts.append("first-order votes")
        if self.meta_test is not None:
            parts.append(f"hypothetical steps are judged on {STATISTICS[self.meta_test]} statistics")
        if self.every is not None:
            parts.append(f"votes on one step in {self.every}")
        return "; ".join(parts)

    @property
    def _base_description(self) -> str:
        if self.kind == "fixed":
            return f"fixed weights of {', '.join(map(_as_text, self.percentages))} per cent"
        if self.kind in get_args(VoteKind):
            degree = "best" if self.kind == "greedy" else "least"
            return f"votes for the domain whose step serves all {degree}; the last {self.window} count"
        if self.kind == "only":
            return f"trained on {self.domain} alone"
        return DESCRIPTIONS.get(self.kind, "")

    @property
    def is_voting(self) -> bool:
        """Whether the weights follow hypothetical steps."""
        return self.kind in (*get_args(VoteKind), *get_args(ShiftKind), "evidence")

    @property
    def is_single(self) -> bool:
        """Whether one domain alone is trained on."""
        return self.kind == "only"

    @property
    def is_fixed(self) -> bool:
        """Whether all domains are trained on, with weights that are set before training."""
        return self.kind in ("equal", "fixed")

    @property
    def is_learned(self) -> bool:
        """Whether the weights are learned while the network trains."""
        return not self.is_fixed and not self.is_single

    @property
    def voting_on_each_step(self) -> "Method":
        """The same method, with a vote on each step."""
        return replace(self, every=None)

    @property
    def order(self) -> tuple[int, str, int, str]:
        """A key that sorts methods as the paper's tables do, and others after them by name."""
        if self in PAPER:
            return (PAPER.index(self), "", 0, "")
        return (len(PAPER), self.kind, self.window or 0, self.name)

    def trained_domains(self, domains: Sequence[str]) -> tuple[str, ...]:
        """Return the domains that are trained on."""
        if not self.is_single:
            return tuple(domains)
        if self.domain not in domains:
            raise UserError(f"method {self.name}: the domains are {', '.join(domains)}; there is no {self.domain}.")
        return (str(self.domain),)

    def check_domains(self, domains: Sequence[str]) -> None:
        """Raise a `UserError` if the method cannot weigh these domains."""
        if self.kind == "unknown":
            raise _unknown_form(self.label)
        self.trained_domains(domains)
        if self.kind == "fixed" and len(self.percentages) != len(domains):
            raise UserError(f"method {self.name} needs {len(self.percentages)} domains; there are {len(domains)}.")
        if self.kind in get_args(ShiftKind) and len(domains) != 2:
            raise UserError(f"method {self.name} needs two domains; there are {len(domains)}.")


def _parse_base(base: str, text: str) -> Method:
    """Return the method of a name without modifiers; `text` is the whole name, for messages."""
    name = _own_name(base)
    if name in (*get_args(PlainKind), *get_args(ShiftKind)):
        return Method(kind=cast("Kind", name))
    if match := re.fullmatch(r"fixed-((?:\d*\.?\d+)(?:-\d*\.?\d+)*)", name):
        return _fixed(base, [float(number) for number in match[1].split("-")])
    if match := re.fullmatch(r"(greedy|conservative)-(\d{1,6})", name):
        window = int(match[2])
        if window < 1:
            raise UserError(f"method {base}: the window must be at least 1 vote; it is {window}.")
        return Method(kind=cast("VoteKind", match[1]), window=window)
    if match := re.fullmatch(r"(.+)-only", name):
        return Method(kind="only", domain=match[1])
    raise _unknown_form(text, did_you_mean(base, EXAMPLES))


def _own_name(base: str) -> str:
    """Return the name that an alias stands for; any other name is returned as it is."""
    for pattern, name in _ALIASES.items():
        if match := re.fullmatch(pattern, base):
            return match.expand(name)
    return base


def _fixed(base: str, numbers: Sequence[float]) -> Method:
    """Return a method of fixed weights, which are percentages or numbers that sum to 1."""
    total = sum(numbers)
    scale = 1.0
    if abs(total - 1) < _TOLERANCE / 100:
        scale = 100.0
    elif abs(total - 100) > _TOLERANCE:
        raise UserError(f"method {base}: the weights must sum to 100 (per cent) or to 1; they sum to {total:g}.")
    percentages = tuple(round(scale * number, _DECIMALS) for number in numbers)
    if len(percentages) == 2 and percentages[0] == percentages[1]:
        return Method(kind="equal")
    return Method(kind="fixed", percentages=percentages)


def _with_modifiers(method: Method, modifiers: Sequence[str], text: str) -> Method:
    """Return the method with what follows each plus; nothing may be said twice."""
    for modifier in modifiers:
        every = re.fullmatch(r"every-([1-9]\d{0,5})", modifier)
        if modifier == "first-order" and not method.first_order:
            method = replace(method, first_order=True)
        elif modifier in get_args(MetaTest) and method.meta_test is None:
            method = replace(method, meta_test=cast("MetaTest", modifier))
        elif every and method.every is None:
            method = replace(method, every=int(every[1]))
        else:
            raise _unknown_form(text, did_you_mean(modifier, MODIFIERS))
    return method


def _check_paper_order(base: str, domains: Sequence[str]) -> None:
    """Refuse the paper's `F10-T90`, which names FLAIR and T1, for other domains or another order."""
    contrasts = [domain.partition("@")[0] for domain in domains]
    if re.fullmatch(r"F\d+-T\d+", base) and contrasts != ["flair", "t1"]:
        raise UserError(f"method {base} weighs flair and t1, in this order; the domains are {list(domains)}.")


def _as_text(percentage: float) -> str:
    """Return a percentage with all its decimals and no exponent, so that a name is read back as it was."""
    return f"{percentage:.{_DECIMALS}f}".rstrip("0").removesuffix(".")


def _unknown_form(text: str, advice: str = "") -> UserError:
    return UserError(f"method must be of the form {FORMS}; got {brief(text)}.{advice}")


EQUAL = Method(kind="equal")
"""The same weight for every domain: what other methods are compared with."""

_PAPER_ROWS = "F50-T50 F10-T90 F90-T10 Simple-G Simple-C Ours-G-25 Ours-G-100 Ours-C-25 Ours-C-100 flair-only t1-only"
PAPER = tuple(map(Method.parse, _PAPER_ROWS.split()))
"""The rows of the paper's tables."""
