import pytest
import torch
from torch import nn

from steelyard.errors import UserError
from steelyard.imaging.networks.build import build_network, is_code
from steelyard.imaging.networks.paper import UNet


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
