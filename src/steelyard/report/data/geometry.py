"""The gradients of the domains at a real step of a real run."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from steelyard.errors import UserError
from steelyard.imaging.datasets.subjects import Dataset
from steelyard.imaging.networks.losses import cross_entropy_minus_dice
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.runs.split import Split
from steelyard.imaging.train.data import load_labelled
from steelyard.imaging.train.sampling import Batch, draw_epoch
from steelyard.imaging.train.weighing import make_probe
from steelyard.probing.halves import halve, meta_tests
from steelyard.report.data.runs import RunRecord

_TRIED = 50  # batches, until one holds two samples of each domain


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Two domains' gradients and what they are judged by, in the plane that the two span.

    The first axis is that of the first gradient; the second is at a right angle to it.

    Args:
        domains: The two.
        weights: Theirs, at the end of the run.
        gradients: Theirs, of the meta-train halves, as points of the plane.
        other_half: The gradient of the sum of losses on the meta-test halves, as far as it lies in the plane.
        other_norm: Its length, with what lies outside the plane.
        parameters: Over how many numbers the gradients are.
    """

    domains: tuple[str, str]
    weights: tuple[float, float]
    gradients: tuple[tuple[float, float], tuple[float, float]]
    other_half: tuple[float, float]
    other_norm: float
    parameters: int

    @property
    def combination(self) -> tuple[float, float]:
        """The weighted gradient that the run would follow, λ_F g_F + λ_T g_T."""
        (a, b), ((ax, ay), (bx, by)) = self.weights, self.gradients
        return a * ax + b * bx, a * ay + b * by

    @property
    def along(self) -> tuple[float, float]:
        """The inner product of each gradient with that of the other half.

        To first order a step along g_d lowers the sum by η times this: greedy votes for the larger, conservative for
        the smaller.
        """
        x, y = self.other_half
        first, second = (gx * x + gy * y for gx, gy in self.gradients)
        return first, second


def measure_geometry(run: RunRecord, dataset: Dataset, *, trusted: Collection[str] = ()) -> Geometry:
    """Measure the gradients of a trained network's first two domains, on a batch of its own training slices.

    The batch is drawn and changed as in training, in the epoch after the last; the halves are those of the inner loop:
    gradients of the meta-train halves in training mode, that of the sum on the meta-test halves in the run's mode.

    Raises:
        UserError: The run trained on one domain, or the dataset lacks its training subjects.
    """
    config = run.config
    if len(config.trained) < 2:
        raise UserError(f"{run.path}: a run on one domain has no geometry of two.")
    domains = (config.trained[0], config.trained[1])
    weights = [run.weights(domain) for domain in domains]
    if not all(weights):
        raise UserError(f"{run.path}: steps.csv is missing or empty; the weights are not known.")
    halves = halve(draw_batch(dataset, config, split=RunFolder(run.path).split, epoch=len(run.epochs)))
    network = run.network(trusted)
    first, second = (_gradient(network, {name: halves[name].meta_train}, training=True) for name in domains)
    tested = meta_tests(halves)
    probe = make_probe(config.method, meta_test=config.meta_test)
    mode = config.meta_test if probe is None else probe.meta_test
    other = _gradient(network, tested, training=mode == "batch")
    across = first / first.norm()
    upwards = second - (second @ across) * across
    upwards = upwards / upwards.norm()
    onto = [(float(vector @ across), float(vector @ upwards)) for vector in (first, second, other)]
    if not all(isfinite(coordinate) for point in onto for coordinate in point):
        raise UserError(f"{run.path}: the two gradients span no plane; the network learns nothing from one of them.")
    return Geometry(
        domains=domains,
        weights=(weights[0][-1], weights[1][-1]),
        gradients=(onto[0], onto[1]),
        other_half=onto[2],
        other_norm=float(other.norm()),
        parameters=len(first),
    )


def draw_batch(dataset: Dataset, config: TrainingConfig, *, split: Split, epoch: int) -> Batch:
    """Return a mini-batch of the training slices with at least two of each domain, drawn and changed as in training.

    Raises:
        UserError: None of many holds two of each.
    """
    slices = load_labelled(dataset, config.slices, domains=config.domains)
    pool = slices.part(split, "train", config.trained)
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    for _ in range(_TRIED):
        for draw in draw_epoch(pool, batch_size=config.batch_size, mixing=config.mixing, generator=generator):
            batch = draw.gather(pool)
            if len(batch) == len(config.trained) and min(len(images) for images, _ in batch.values()) >= 2:
                return {name: _changed(pair, config, generator) for name, pair in batch.items()}
    raise UserError(f"{dataset.root}: batches of {config.batch_size} never hold two slices of each domain.")


def _changed(pair: tuple[Tensor, Tensor], config: TrainingConfig, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return pair if config.augmentation is None else config.augmentation(*pair, generator=generator)


def _gradient(network: nn.Module, batch: Mapping[str, object], *, training: bool) -> Tensor:
    """Return the gradient of the sum of the domains' losses as one vector; the network stays as it is."""
    shadow = deepcopy(network).train(training)
    pairs: list[tuple[Tensor, Tensor]] = list(batch.values())  # type: ignore[arg-type]
    outputs = shadow(torch.cat([images for images, _ in pairs])).split([len(images) for images, _ in pairs])
    losses = [cross_entropy_minus_dice(output, masks) for output, (_, masks) in zip(outputs, pairs, strict=True)]
    parameters = [parameter for parameter in shadow.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(torch.stack(losses).sum(), parameters, allow_unused=True)
    flat = [
        (torch.zeros_like(parameter) if gradient is None else gradient).flatten()
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    return torch.cat(flat).double()
