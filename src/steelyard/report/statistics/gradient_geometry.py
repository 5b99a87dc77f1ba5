"""The gradients of two domains at a real step of a real run, measured."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor, nn

from steelyard.errors import UserError
from steelyard.imaging.datasets.subjects import Dataset
from steelyard.imaging.networks.paper import cross_entropy_minus_dice
from steelyard.imaging.runs.config import TrainingConfig
from steelyard.imaging.runs.method import Method
from steelyard.imaging.runs.run_folder import RunFolder
from steelyard.imaging.runs.split import Split
from steelyard.imaging.train.data import load_labelled
from steelyard.imaging.train.sampling import Batch, draw_epoch
from steelyard.probing.vote_probe import halve
from steelyard.report.data.runs import RunRecord

Point = tuple[float, float]

_TRIED_EPOCHS = 50  # until a batch holds two samples of each domain


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Two domains' gradients, and that of the meta-test halves, in the plane that the two span.

    The first axis is that of the first gradient; the second is at a right angle to it.

    Args:
        domains: The two domains.
        weights: Their weights at the end of the run.
        gradients: Those of the meta-train halves, as points of the plane.
        other_half: The gradient of the sum of losses on the meta-test halves, projected on the plane.
        other_norm: Its length before the projection.
        parameters: The number of parameters.
    """

    domains: tuple[str, str]
    weights: tuple[float, float]
    gradients: tuple[Point, Point]
    other_half: Point
    other_norm: float
    parameters: int

    @property
    def combination(self) -> Point:
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
        (ax, ay), (bx, by) = self.gradients
        return ax * x + ay * y, bx * x + by * y


def measure_geometry(run: RunRecord, dataset: Dataset, *, trusted: Collection[str] = ()) -> Geometry:
    """Measure the gradients of a trained network's first two domains, on a batch of its own training slices.

    The batch is drawn and augmented as in training, in the epoch after the last. The halves are those of the inner
    loop: gradients of the meta-train halves in training mode, that of the sum on the meta-test halves in the mode of
    the run.

    Raises:
        UserError: The run trained on one domain, or the dataset lacks its training subjects.
    """
    if len(run.trained) < 2:
        raise UserError(f"{run.path}: a run on one domain has no geometry of two.")
    config = RunFolder(run.path).config
    domains = (run.trained[0], run.trained[1])
    weights = (run.final_weight(domains[0]), run.final_weight(domains[1]))
    if isnan(weights[0]) or isnan(weights[1]):
        raise UserError(f"{run.path}: steps.csv is missing or empty; the weights are not known.")
    halves = halve(draw_batch(dataset, config, split=RunFolder(run.path).split, epoch=len(run.epochs)))
    network = run.network(trusted)
    first = _gradient(network, {domains[0]: halves.trains[domains[0]]}, training=True)
    second = _gradient(network, {domains[1]: halves.trains[domains[1]]}, training=True)
    meta_test_mode = Method.parse_or_unknown(run.method).meta_test or config.meta_test
    other = _gradient(network, halves.tests, training=meta_test_mode == "batch")
    points = _in_plane(first, second, other)
    if not torch.tensor(points).isfinite().all():
        raise UserError(f"{run.path}: the two gradients span no plane; the network learns nothing from one of them.")
    return Geometry(
        domains=domains,
        weights=weights,
        gradients=(points[0], points[1]),
        other_half=points[2],
        other_norm=float(other.norm()),
        parameters=len(first),
    )


def draw_batch(dataset: Dataset, config: TrainingConfig, *, split: Split, epoch: int) -> Batch:
    """Return a mini-batch of the training slices with at least two of each domain, augmented as in training.

    Raises:
        UserError: None of many holds two of each.
    """
    slices = load_labelled(dataset, config.slices, domains=config.domains)
    pool = slices.part(split, "train", config.trained)
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    for _ in range(_TRIED_EPOCHS):
        for draw in draw_epoch(pool, batch_size=config.batch_size, mixing=config.mixing, generator=generator):
            batch = draw.gather(pool)
            smallest = min(len(images) for images, _ in batch.values())
            if len(batch) == len(config.trained) and smallest >= 2:
                return _augmented(batch, config, generator)
    raise UserError(f"{dataset.root}: batches of {config.batch_size} never hold two slices of each domain.")


def _augmented(batch: Batch, config: TrainingConfig, generator: torch.Generator) -> Batch:
    if config.augmentation is None:
        return batch
    augmented = {}
    for domain, (images, masks) in batch.items():
        augmented[domain] = config.augmentation(images, masks, generator=generator)
    return augmented


def _in_plane(first: Tensor, second: Tensor, other: Tensor) -> list[Point]:
    """Return three vectors as points of the plane that the first two span; NaN if they span none."""
    across = first / first.norm()
    upwards = second - (second @ across) * across
    upwards = upwards / upwards.norm()
    return [(float(vector @ across), float(vector @ upwards)) for vector in (first, second, other)]


def _gradient(network: nn.Module, batch: Mapping[str, tuple[Tensor, Tensor]], *, training: bool) -> Tensor:
    """Return the gradient of the sum of the domains' losses as one vector; the network is left unchanged."""
    replica = deepcopy(network).train(training)
    images = [pair[0] for pair in batch.values()]
    outputs = replica(torch.cat(images)).split([len(part) for part in images])
    losses = []
    for output, (_, masks) in zip(outputs, batch.values(), strict=True):
        losses.append(cross_entropy_minus_dice(output, masks))
    parameters = [parameter for parameter in replica.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(torch.stack(losses).sum(), parameters, allow_unused=True)
    flat = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        flat.append(gradient.flatten())
    return torch.cat(flat).double()
