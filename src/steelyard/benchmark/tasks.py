"""The tasks of the benchmark: networks, losses and batches, with all their settings."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.optim import SGD

from steelyard.imaging.networks.paper import UNet, cross_entropy_minus_dice

_TOKENS = 1024  # of the language models: their vocabulary

Batch = dict[str, tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]
Forward = Callable[[Any, Tensor], Tensor]
Step = Callable[[], None]
"""Takes one training step each time it is called."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A network in training, in float32 with SGD and momentum."""

    model: nn.Module
    loss: Loss
    batch: Batch
    optimizer: SGD
    forward: Forward | None = None
    """How the model is run, unless as `model(inputs)`."""

    def run(self, inputs: Tensor) -> Any:
        """The model's outputs."""
        if self.forward is None:
            return self.model(inputs)
        return self.forward(self.model, inputs)


def make_task(network: str, domains: int) -> Task:
    """Return a task with a new network and random samples, the same at every call."""
    torch.manual_seed(0)
    parts = NETWORKS[network]()
    batch = {f"domain {number}": parts.draw_samples() for number in range(domains)}
    optimizer = make_optimizer(parts.model.parameters())
    return Task(model=parts.model, loss=parts.loss, batch=batch, optimizer=optimizer, forward=parts.forward)


def make_optimizer(parameters: Iterable[Tensor]) -> SGD:
    """Return the optimizer of all steps: torch's fused SGD, which is the fastest."""
    return SGD(parameters, lr=0.01, momentum=0.9, fused=True)


class Parts(NamedTuple):
    """What a task is built from."""

    model: nn.Module
    loss: Loss
    draw_samples: Callable[[], tuple[Tensor, Tensor]]
    """Draws one domain's inputs and targets."""
    forward: Forward | None = None


def _unet_batchnorm() -> Parts:
    """U-Net of width 16, cross-entropy minus batch Dice, four 128×128 images per domain, channels-last."""
    layout = torch.channels_last
    model = UNet(width=16).to(memory_format=layout)  # type: ignore[call-overload]
    return Parts(model, cross_entropy_minus_dice, lambda: _images(4, 128, layout=layout))


def _unet_instancenorm() -> Parts:
    """The same with instance normalisation, faster in contiguous memory; cross-entropy alone, a mean over samples."""
    model = _with_instancenorm(UNet(width=16))
    return Parts(model, binary_cross_entropy_with_logits, lambda: _images(4, 128))


def _unet_small() -> Parts:
    """The same of width 8 with four 32×32 images per domain, for many domains."""
    model = _with_instancenorm(UNet(width=8))
    return Parts(model, binary_cross_entropy_with_logits, lambda: _images(4, 32))


def _transformer() -> Parts:
    """Four pre-norm layers of width 128; 32 sequences of 64 tokens per domain."""
    return Parts(_Transformer(), _token_loss, lambda: (torch.randint(256, (32, 64)), torch.randint(256, (32, 64))))


def _mlp() -> Parts:
    """Three hidden layers of width 1024; 64 samples of 64 features per domain."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((64, 1024, 1024, 1024)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(1024, 10))
    return Parts(model, cross_entropy, lambda: (torch.randn(64, 64), torch.randint(10, (64,))))


def _bert() -> Parts:
    """BERT for classification as it is built by default, with dropout: four layers of width 128; 16 × 64 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=_TOKENS,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )
    config.num_labels = 4
    model = BertForSequenceClassification(config).train()
    return Parts(
        model,
        cross_entropy,
        lambda: (torch.randint(_TOKENS, (16, 64)), torch.randint(4, (16,))),
        lambda model, tokens: model(input_ids=tokens).logits,
    )


def _gpt2() -> Parts:
    """GPT-2 as it is built by default, with dropout: four layers of width 128; 16 × 64 tokens that predict the next."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=_TOKENS, n_embd=128, n_layer=4, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    )

    def draw() -> tuple[Tensor, Tensor]:
        tokens = torch.randint(_TOKENS, (16, 64))
        return tokens, tokens

    model = GPT2LMHeadModel(config).train()
    return Parts(model, _next_token_loss, draw, lambda model, tokens: model(input_ids=tokens, use_cache=False).logits)


def _next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class _Transformer(nn.Module):
    def __init__(self, width: int = 128, length: int = 64, tokens: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.output = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.layers(self.embedding(tokens) + self.positions))
        return logits


def _token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _images(count: int, size: int, *, layout: torch.memory_format = torch.contiguous_format) -> tuple[Tensor, Tensor]:
    """Noise, with masks of 5 % of the pixels."""
    images = torch.randn(count, 1, size, size).to(memory_format=layout)
    masks = (torch.rand(count, 1, size, size) < 0.05).float()
    return images, masks


def _with_instancenorm(module: nn.Module) -> nn.Module:
    """Replace batch by instance normalisation, in place."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.InstanceNorm2d(child.num_features, affine=True))
        else:
            _with_instancenorm(child)
    return module


NETWORKS: dict[str, Callable[[], Parts]] = {
    "unet-batchnorm": _unet_batchnorm,
    "unet-instancenorm": _unet_instancenorm,
    "unet-small": _unet_small,
    "transformer": _transformer,
    "mlp": _mlp,
}
if find_spec("transformers"):
    NETWORKS |= {"bert": _bert, "gpt2": _gpt2}
