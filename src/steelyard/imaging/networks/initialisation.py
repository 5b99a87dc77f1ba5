"""How the paper's networks start."""

from torch import nn


def initialise(network: nn.Module) -> None:
    """Xavier-uniform weights with ReLU's gain and zero biases in every convolution."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.xavier_uniform_(module.weight, gain=nn.init.calculate_gain("relu"))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
