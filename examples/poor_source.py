"""Which source has poor labels? Digits from three sources, one of them labelled carelessly, in a Lightning module.

    python examples/poor_source.py      prints the audit, which names the poor source, and the accuracies

The images are scikit-learn's, of 8 × 8 pixels. Half of the labels of the source `clerk` are replaced by random digits.
"""

import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import steelyard as sy

# All settings were fixed before any result was seen.
SOURCES = ("archive", "clerk", "survey")
POOR = "clerk"
WRONG = 0.5  # part of the poor source's labels that are replaced by random ones
TEST_IMAGES = 597  # with their true labels; the other 1,200 are divided among the sources
BATCH = 20  # images of each source
EPOCHS = 15  # of 20 steps
LEARNING_RATE = 2e-3


class Reader(lightning.LightningModule):
    """A small convolutional network, and the balancer that weighs the sources' losses."""

    def __init__(self, weighting: sy.Weighting) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
        self.balancer = sy.Balancer(SOURCES, loss=cross_entropy, weighting=weighting, probe=sy.FirstOrder())

    def training_step(self, batch: dict[str, list[Tensor]]) -> Tensor:
        """The weighted loss; Lightning does the rest."""
        loss: Tensor = self.balancer(self.network, batch, self.optimizers())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW on the network."""
        return torch.optim.AdamW(self.network.parameters(), lr=LEARNING_RATE)


def draw_sources(generator: torch.Generator) -> tuple[dict[str, TensorDataset], TensorDataset]:
    """The images of each source, and those to test on."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    digits = torch.tensor(bunch.target)
    order = torch.randperm(len(digits), generator=generator)
    test, rest = order[:TEST_IMAGES], order[TEST_IMAGES:]
    sources = {}
    for name, rows in zip(SOURCES, rest.chunk(len(SOURCES)), strict=True):
        labels = digits[rows]
        if name == POOR:
            replaced = torch.rand(len(labels), generator=generator) < WRONG
            labels = torch.where(replaced, torch.randint(10, labels.shape, generator=generator), labels)
        sources[name] = TensorDataset(images[rows], labels)
    return sources, TensorDataset(images[test], digits[test])


def train(weighting: sy.Weighting, seed: int) -> tuple[sy.Balancer, float]:
    """Train on all sources; the balancer, and the accuracy on images with true labels."""
    torch.manual_seed(seed)
    sources, test = draw_sources(torch.Generator().manual_seed(seed))
    loaders = {name: DataLoader(source, BATCH, shuffle=True) for name, source in sources.items()}
    reader = Reader(weighting)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(reader, loaders)
    images, digits = test.tensors
    reader.network.eval()
    with torch.no_grad():
        guesses = reader.network(images).argmax(1)
    return reader.balancer, float((guesses == digits).float().mean())


def main(seeds: range = range(3)) -> None:
    """Train with equal and with learned weights; print the audit of the first run, and the accuracies."""
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # Lightning: 400 images need none
    for seed in seeds:
        _, equal = train(sy.Fixed(), seed)
        balancer, learned = train(sy.Evidence(), seed)
        if seed == seeds[0]:
            print(balancer.audit())
        print(f"seed {seed}: accuracy {equal:.1%} with equal weights, {learned:.1%} with learned ones")


if __name__ == "__main__":
    main()
