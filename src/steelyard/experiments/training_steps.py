"""The training steps that are compared: everything about them is fixed here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from steelyard.imaging.losses import cross_entropy_minus_dice
from steelyard.imaging.unet import UNet
from steelyard.probing import InnerLoop
from steelyard.training import Balancer
from steelyard.weighting import DirichletVote, Fixed

Step = Callable[[], None]
Batch = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the benchmark."""

    network: str = "unet-batchnorm"
    domains: int = 2
    method: str
    every: int = 1


def cases() -> list[Case]:
    """Every row, the plain step first; the authors' way only where `higher` is installed."""
    rows = [Case(method="plain"), Case(method="fixed")]
    rows += [Case(method="inner-loop", every=every) for every in (1, 4, 8)]
    if find_spec("higher"):
        rows.append(Case(method="higher"))
    return rows


def make_step(case: Case) -> Step:
    """A function that takes one training step each time it is called.

    The network is a U-Net of width 16 with batch normalisation, the loss cross-entropy minus batch Dice, the images
    128×128, four per domain; SGD with momentum; float32 in channels-last, the fastest layout on a CPU.
    """
    torch.manual_seed(0)
    model = UNet(width=16).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = {
        f"domain {d}": (
            torch.randn(4, 1, 128, 128).to(memory_format=torch.channels_last),
            (torch.rand(4, 1, 128, 128) < 0.05).float(),
        )
        for d in range(case.domains)
    }
    return METHODS[case.method](case, model, optimizer, batch)


def _plain(_: Case, model: nn.Module, optimizer: SGD, batch: Batch) -> Step:
    """The fastest plain loop: images joined beforehand, one forward pass, one backward pass."""
    images = torch.cat([x for x, _ in batch.values()])
    targets = [y for _, y in batch.values()]

    def step() -> None:
        outputs = model(images).split(4)
        losses = [cross_entropy_minus_dice(o, y) for o, y in zip(outputs, targets, strict=True)]
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _balanced(case: Case, model: nn.Module, optimizer: SGD, batch: Batch) -> Step:
    learned = case.method == "inner-loop"
    balancer = Balancer(
        tuple(batch),
        loss=cross_entropy_minus_dice,
        weighting=DirichletVote() if learned else Fixed(),
        probe=InnerLoop(every=case.every) if learned else None,
    )

    def step() -> None:
        loss = balancer(model, batch, optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _higher(case: Case, model: nn.Module, optimizer: SGD, batch: Batch) -> Step:
    """The authors' way: differentiable copies of model and optimizer by `higher`, then the plain step."""
    import higher

    plain = _plain(replace(case, method="plain"), model, optimizer, batch)
    rest = torch.cat([x[2:] for x, _ in batch.values()])
    targets = [y[2:] for _, y in batch.values()]

    def favoured(images: Tensor, masks: Tensor) -> Any:
        with higher.innerloop_ctx(model, optimizer, track_higher_grads=False) as (twin, stepper):
            stepper.step(cross_entropy_minus_dice(twin(images), masks))
            twin.eval()
            with torch.no_grad():
                outputs = twin(rest).split(2)
            return sum(cross_entropy_minus_dice(o, y).item() for o, y in zip(outputs, targets, strict=True))

    def step() -> None:
        for images, masks in batch.values():
            favoured(images[:2], masks[:2])
        plain()

    return step


METHODS: dict[str, Callable[[Case, nn.Module, SGD, Batch], Step]] = {
    "plain": _plain,
    "fixed": _balanced,
    "inner-loop": _balanced,
    "higher": _higher,
}
