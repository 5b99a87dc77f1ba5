import pytest
import torch

from steelyard.imaging.networks.paper import Lightweight, UNet, cross_entropy_minus_dice


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_parameter_counts_are_the_papers():
    assert parameters(UNet()) == 14_787_777
    assert parameters(Lightweight()) == 445_057


@pytest.mark.parametrize("network", [UNet, Lightweight])
def test_logits_have_the_inputs_size(network):
    assert network(width=2)(torch.randn(2, 1, 32, 48)).shape == (2, 1, 32, 48)


def test_unet_says_which_sizes_fit():
    with pytest.raises(ValueError, match=r"multiples of 16; got \(30, 32\)"):
        UNet(width=1)(torch.randn(1, 1, 30, 32))


def test_starts_from_xavier_with_relu_gain_and_zero_bias():
    convolution = Lightweight(width=32).conv_down[3]
    fan = 9 * (32 + 64)
    bound = 2**0.5 * (6 / fan) ** 0.5
    assert convolution.weight.abs().max() <= bound
    assert convolution.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not convolution.bias.any()


def test_loss_by_hand():
    probabilities = torch.tensor([[0.8, 0.4]])
    logits = torch.log(probabilities / (1 - probabilities))
    targets = torch.tensor([[1.0, 0.0]])
    entropy = -(torch.log(torch.tensor(0.8)) + torch.log(torch.tensor(0.6))) / 2
    expected = entropy - 2 * 0.8 / (1 + 1.2)
    assert cross_entropy_minus_dice(logits, targets).item() == pytest.approx(expected.item(), rel=1e-6)


def test_loss_sums_over_the_whole_batch():
    logits, targets = torch.randn(2, 1, 4, 4), (torch.rand(2, 1, 4, 4) < 0.3).float()
    whole = cross_entropy_minus_dice(logits, targets)
    apart = (cross_entropy_minus_dice(logits[:1], targets[:1]) + cross_entropy_minus_dice(logits[1:], targets[1:])) / 2
    assert whole != pytest.approx(apart.item(), rel=1e-4)


def test_loss_of_an_empty_mask_is_finite():
    assert torch.isfinite(cross_entropy_minus_dice(torch.full((1, 4), -1e4), torch.zeros(1, 4)))
