"""The settings that probes of hypothetical losses have in common."""

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

from torch.amp.grad_scaler import GradScaler

from steelyard.measurement import Statistic
from steelyard.probing.halves import Split
from steelyard.probing.optimizer_step import Rule
from steelyard.probing.probe import Probe
from steelyard.probing.sharing import Reuse, Reusing

MetaTest = Literal["eval", "batch"]


class VoteProbe(Probe, ABC):
    """Hypothetical losses H_d, from the halves of each domain's batch; `InnerLoop` documents the arguments."""

    statistic: ClassVar[Statistic] = Statistic.HYPOTHETICAL_LOSSES

    def __init__(
        self,
        *,
        step: Rule = "optimizer",
        meta_test: MetaTest = "eval",
        split: Split = "first",
        every: int = 1,
        gather: bool | int = False,
        scaler: GradScaler | None = None,
        reuse: Reusing = False,
    ) -> None:
        super().__init__(every=every, gather=gather)
        _check_choice("step", step, get_args(Rule))
        _check_choice("meta_test", meta_test, get_args(MetaTest))
        _check_choice("split", split, get_args(Split))
        if gather and reuse is True:
            raise ValueError("reuse=True needs votes cast on the outer step's own samples; with gather they are not.")
        self.step = step
        self.meta_test = meta_test
        self.split = split
        self.scaler = scaler
        self.reuse = Reuse(False if gather else reuse)

    def extra_repr(self) -> str:
        """The settings, for `print(balancer)`."""
        return f"step={self.step!r}, meta_test={self.meta_test!r}, split={self.split!r}, every={self.every}"


def _check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}; got {value!r}.")
