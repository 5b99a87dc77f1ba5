"""The state of a training: everything that changes from epoch to epoch."""

from collections.abc import Mapping
from math import inf
from typing import Any, final

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from steelyard.imaging.networks.build import build_network
from steelyard.imaging.networks.paper import cross_entropy_minus_dice, soft_dice_loss
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.train.method_parts import make_probe, make_weighting
from steelyard.probing.vote_probe import VoteProbe
from steelyard.training import Balancer

_VERSION = 1  # of the form of `state_dict`


@final
class TrainingState:
    """A network, its optimizer and balancer, and how far training is.

    Args:
        config: The run's settings.
        fabric: Where it runs.
        steps: How many steps an epoch has.

    Attributes:
        network: The network itself, unwrapped.
        model: The network as the fabric wraps it.
        cycle: The one-cycle schedule, if the config asks for it.
        epoch: How many epochs are done.
        best: The lowest validation loss so far.
        waited: How many epochs ago that was.
    """

    def __init__(self, config: TrainingConfig, fabric: Fabric, *, steps: int) -> None:
        self.config = config
        self.fabric = fabric
        torch.manual_seed(config.seed)  # settles the initial weights
        network = build_network(config.model, width=config.width, options=config.options)
        self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model, self.optimizer = fabric.setup(self.network, _make_optimizer(config, self.network))
        self.balancer = _make_balancer(config).to(fabric.device)
        self.cycle = _make_cycle(config, self.optimizer, steps)
        self.epoch = 0
        self.best = inf
        self.waited = 0

    @property
    def learning_rate(self) -> float:
        """The rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def measures_transfer(self) -> bool:
        """Whether it is measured how a step for one domain changes the scores of the others."""
        return isinstance(self.balancer.probe, VoteProbe)

    @property
    def finished(self) -> bool:
        """Whether the schedule has ended."""
        if self.config.schedule == "plateau" and self.waited >= self.config.stop_after:
            return True
        return self.epoch >= self.config.epochs

    def finish_epoch(self, validation: float) -> bool:
        """Count an epoch, let the learning rate follow the validation loss, and return whether it was the best.

        Losses go down to −1, so better means lower by any amount: a threshold relative to a negative loss would point
        the wrong way.
        """
        self.epoch += 1
        better = validation < self.best
        if better:
            self.best = validation
            self.waited = 0
        else:
            self.waited += 1
        if self.config.schedule == "plateau" and self.waited and self.waited % self.config.patience == 0:
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.1
        return better

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later process needs to resume; an epoch's random numbers follow from its number."""
        return {
            "version": _VERSION,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "balancer": self.balancer.state_dict(),
            "cycle": None if self.cycle is None else self.cycle.state_dict(),
            "epoch": self.epoch,
            "best": self.best,
            "waited": self.waited,
        }

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned."""
        self.network.load_state_dict(content["network"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.balancer.load_state_dict(content["balancer"])
        if self.cycle is not None:
            self.cycle.load_state_dict(content["cycle"])
        self.epoch, self.best, self.waited = content["epoch"], content["best"], content["waited"]


def _make_optimizer(config: TrainingConfig, network: nn.Module) -> Optimizer:
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "adamw":
        return AdamW(network.parameters(), lr=rate, weight_decay=decay)
    return SGD(network.parameters(), lr=rate, momentum=config.momentum, weight_decay=decay)


def _make_balancer(config: TrainingConfig) -> Balancer:
    weighting = make_weighting(config.method, config.trained, prior=config.prior)
    probe = make_probe(config.method, meta_test=config.meta_test, every=config.every)
    # The loss goes down to −1, so `evidence` cannot bound it and is judged by the bounded part that is reported, Dice.
    judge = soft_dice_loss if config.method.kind == "evidence" else None
    return Balancer(config.trained, loss=cross_entropy_minus_dice, judge=judge, weighting=weighting, probe=probe)


def _make_cycle(config: TrainingConfig, optimizer: Optimizer, steps: int) -> OneCycleLR | None:
    """Return the one-cycle schedule over all steps of all epochs; `None` for another schedule."""
    if config.schedule != "one-cycle":
        return None
    inner: Optimizer = getattr(optimizer, "optimizer", optimizer)  # the fabric wraps it in an attribute of this name
    return OneCycleLR(
        inner,
        max_lr=config.learning_rate,
        total_steps=config.epochs * steps,
        cycle_momentum=config.optimizer == "sgd" and config.momentum > 0,
    )
