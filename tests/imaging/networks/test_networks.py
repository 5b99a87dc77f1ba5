import re

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from torch import nn

from steelyard.errors import UserError
from steelyard.imaging.networks import export
from steelyard.imaging.networks.build import build_network, is_code
from steelyard.imaging.networks.export import export_onnx
from steelyard.imaging.networks.paper import Lightweight, UNet, cross_entropy_minus_dice, soft_dice_loss
from steelyard.imaging.scans.frame import Frame


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


def test_instance_normalisation_treats_each_slice_by_itself():
    torch.manual_seed(0)
    network = build_network("unet", width=2, options={"norm": "instance"})
    images = torch.randn(3, 1, 32, 32)
    torch.testing.assert_close(network(images)[1:2], network(images[1:2]))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def test_a_seed_gives_both_normalisations_the_same_start():
    starts = []
    for norm in ("batch", "instance"):
        torch.manual_seed(0)
        starts.append(dict(UNet(width=2, norm=norm).named_parameters()))
    batch, instance = starts
    assert batch.keys() == instance.keys()
    assert all(torch.equal(batch[name], instance[name]) for name in batch)


def test_other_normalisations_are_refused():
    with pytest.raises(UserError, match="model unet: norm must be one of batch, instance; got 'layer'"):
        build_network("unet", width=2, options={"norm": "layer"})


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


def test_soft_dice_loss_by_hand_and_within_its_bounds():
    probabilities = torch.tensor([[0.8, 0.4]])
    logits = torch.log(probabilities / (1 - probabilities))
    assert soft_dice_loss(logits, torch.tensor([[1, 0]])).item() == pytest.approx(1 - 2 * 0.8 / (1 + 1.2), rel=1e-6)
    for masks in (torch.zeros(1, 4), torch.ones(1, 4)):
        for level in (-1e4, 0.0, 1e4):
            assert 0 <= soft_dice_loss(torch.full((1, 4), level), masks) <= 1


def test_loss_sums_over_the_whole_batch():
    logits, targets = torch.randn(2, 1, 4, 4), (torch.rand(2, 1, 4, 4) < 0.3).float()
    whole = cross_entropy_minus_dice(logits, targets)
    apart = (cross_entropy_minus_dice(logits[:1], targets[:1]) + cross_entropy_minus_dice(logits[1:], targets[1:])) / 2
    assert whole != pytest.approx(apart.item(), rel=1e-4)


def test_loss_of_an_empty_mask_is_finite():
    assert torch.isfinite(cross_entropy_minus_dice(torch.full((1, 4), -1e4), torch.zeros(1, 4)))


def test_ours_come_by_name_and_width():
    network = build_network("unet", width=4)
    assert isinstance(network, UNet)
    assert network.output.in_channels == 4
    assert build_network("lightweight", width=4)(torch.zeros(1, 1, 16, 16)).shape == (1, 1, 16, 16)


def test_monais_networks_are_told_what_they_get():
    network = build_network("monai:BasicUNet", options={"features": [4, 4, 8, 8, 8, 4]})
    assert type(network).__module__.startswith("monai.")
    assert network(torch.zeros(1, 1, 32, 32)).shape == (1, 1, 32, 32)


def test_anyones_module_comes_by_import_path_unchanged():
    network = build_network("torch.nn:Conv2d", options={"in_channels": 1, "out_channels": 1, "kernel_size": 1})
    assert type(network) is nn.Conv2d


def test_only_our_own_names_are_not_code():
    assert not is_code("unet")
    assert is_code("monai:UNet")
    assert is_code("os:system")


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("resnet", {}, "must be unet, lightweight, monai:CLASS or package.module:callable"),
        ("no.such.module:Net", {}, "cannot be imported"),
        ("torch.nn:Nothing", {}, "has no Nothing"),
        ("builtins:list", {}, "must return an nn.Module; got list"),
        ("unet", {"depth": 3}, "depth"),
    ],
)
def test_what_is_no_network_is_refused(model, options, message):
    with pytest.raises(UserError, match=message):
        build_network(model, options=options)


FRAME = Frame(shape=(48, 32), pixel_mm=2.0)


@pytest.mark.parametrize("model", [pytest.param("unet", marks=pytest.mark.slow), "lightweight"])
def test_onnx_runtime_says_what_torch_says_at_any_size(model, tmp_path):
    torch.manual_seed(0)
    network = build_network(model, width=4).eval()
    assert export_onnx(network, tmp_path / "model.onnx", frame=FRAME) < 1e-4
    session = InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    slices = torch.randn(5, 1, 64, 80)
    with torch.no_grad():
        ours = network(slices).sigmoid().numpy()
    theirs = session.run(["probabilities"], {"slices": slices.numpy()})[0]
    assert np.abs(ours - theirs).max() < 1e-4
    held = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert held["steelyard.pixel_mm"] == "2.0"


def test_a_file_that_disagrees_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_convert", lambda *_: b"a model")
    monkeypatch.setattr(export, "_differences", lambda *_: [1e-5, 2e-4])
    with pytest.raises(UserError, match=r"ONNX Runtime differs from torch by 0.0002; nothing was written"):
        export_onnx(build_network("unet", width=4).eval(), tmp_path / "model.onnx", frame=FRAME)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_said(tmp_path):
    class Stubborn(nn.Conv2d):
        def forward(self, slices):
            return super().forward(slices) if float(slices.sum()) > 0 else slices

    with pytest.raises(UserError, match="cannot be exported"):
        export_onnx(Stubborn(1, 1, 1), tmp_path / "model.onnx", frame=FRAME)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("monai:UNet", {}, "needs channels and strides; add --set options.channels=VALUE options.strides=VALUE."),
        ("monai:UNet", {"channels": [4, 8]}, "needs strides; add --set options.strides=VALUE."),
        ("monai:UNet", {"channel": 4}, "has no option channel. Did you mean channels?"),
        ("monai:Unett", {}, "monai.networks.nets has no Unett. Did you mean Unet?"),
        ("Unet", {}, "or package.module:callable; got 'Unet'. Did you mean unet?"),
        ("lightweight", {"chanels": 4}, "has no option chanels. Did you mean channels?"),
    ],
)
def test_what_a_network_needs_is_named(model, options, message):
    with pytest.raises(UserError, match=f"{re.escape(message)}$"):
        build_network(model, options=options)
