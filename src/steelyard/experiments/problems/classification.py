"""Loss, judge and metrics of problems whose networks give one logit per class."""

import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

from steelyard.experiments.problems.problem import DomainData, Labelled, Problem


class Classification(Problem):
    """A problem whose networks give one logit per class; the metric is the subclass's own."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return functional.cross_entropy(outputs, targets)

    def judge(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of 1 − p(label)."""
        return mean_error(outputs, targets)


def mean_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of 1 − p(label): bounded, so that a wrong label costs little."""
    probabilities = outputs.softmax(-1).gather(-1, targets[:, None])
    return 1 - probabilities.mean()


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of samples whose label has the largest logit; outputs that are not finite are all wrong."""
    correct = (outputs.argmax(-1) == targets) & outputs.isfinite().all(-1)
    return float(correct.double().mean())


def area_under_curve(outputs: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve of two classes; outputs that are not finite count as a constant."""
    difference = (outputs[:, 1] - outputs[:, 0]).double()
    difference = torch.where(difference.isfinite(), difference, 0.0)
    positive = targets.numpy() == 1
    pairs = int(positive.sum()) * int((~positive).sum())
    # Mann and Whitney: of all pairs of a positive and a negative sample, those in the right order; ties count half.
    # (sklearn's roc_auc_score gives the same and takes ten times as long, which a sweep would notice.)
    smallest_sum = int(positive.sum()) * (int(positive.sum()) + 1) / 2
    return float((stats.rankdata(difference.numpy())[positive].sum() - smallest_sum) / pairs)


def split_stratified(samples: Labelled, shares: tuple[float, float], generator: torch.Generator) -> DomainData:
    """Divide samples at random, each class by itself.

    Args:
        samples: All of a domain.
        shares: Of the samples for training and for validation; the rest is for the test.
        generator: Divides them.
    """
    train_rows, validation_rows, test_rows = [], [], []
    for label in sorted(set(samples.targets.tolist())):
        rows = (samples.targets == label).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        train_end = round(shares[0] * len(rows))
        validation_end = train_end + max(1, round(shares[1] * len(rows)))
        train_rows.append(rows[:train_end])
        validation_rows.append(rows[train_end:validation_end])
        test_rows.append(rows[validation_end:])
    return DomainData(
        train=samples.take(torch.cat(train_rows)),
        validation=samples.take(torch.cat(validation_rows)),
        test=samples.take(torch.cat(test_rows)),
    )
