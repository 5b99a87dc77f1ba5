import pytest
import torch

from steelyard.errors import UserError
from steelyard.imaging.runs.slice_settings import Augmentation

STILL = {"rotation": 0, "scale": (1, 1), "shear": 0}


def disc(rows=64, columns=64, row=31.5, column=31.5, radius=10.0):
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return (((y - row) ** 2 + (x - column) ** 2) < radius**2).float()[None, None]


def change(image, **settings):
    augmentation = Augmentation(**(STILL | settings))
    return augmentation(image, image, generator=torch.Generator().manual_seed(3))


def test_without_any_change_everything_stays():
    image = torch.randn(4, 1, 32, 48)
    changed, masks = change(image)
    assert torch.equal(changed, image)
    assert torch.equal(masks, (image > 0.5).float())


@pytest.mark.parametrize("shape", [(64, 64), (96, 48), (48, 96)])
def test_a_disc_in_the_middle_stays_a_disc_when_it_is_turned(shape):
    image = disc(*shape, row=(shape[0] - 1) / 2, column=(shape[1] - 1) / 2).expand(16, -1, -1, -1)
    changed, _ = change(image, rotation=180)
    apart = (changed - image).abs().sum(dim=(1, 2, 3))
    assert apart.max() < 0.12 * image[0].sum()


def test_a_spot_off_the_middle_moves_on_a_circle():
    image = disc(row=15.0, radius=4.0).expand(8, -1, -1, -1)
    changed, masks = change(image, rotation=180)
    places = torch.stack([one[0].nonzero().float().mean(0) for one in changed]) - 31.5
    assert torch.allclose(places.norm(dim=1), torch.tensor(16.5), atol=0.5)
    assert places.std(dim=0).min() > 3
    assert torch.equal(changed, masks)


def test_scale_changes_the_area_by_its_square_and_stays_in_its_range():
    image = disc().expand(64, -1, -1, -1)
    areas = change(image, scale=(0.8, 1.2))[0].sum(dim=(1, 2, 3)) / image[0].sum()
    assert areas.min() > 0.6
    assert areas.max() < 1.5
    assert areas.min() < 0.75
    assert areas.max() > 1.3


def test_shear_keeps_the_area_and_slants():
    square = torch.zeros(32, 1, 64, 64)
    square[:, :, 22:42, 22:42] = 1
    changed, _ = change(square, shear=30)
    assert torch.allclose(changed.sum(dim=(1, 2, 3)), torch.tensor(400.0), rtol=0.06)
    top, bottom = (changed[:, 0, row].argmax(dim=1) for row in (23, 40))
    assert (top - bottom).abs().max() >= 8


def test_flip_exchanges_left_and_right_in_about_half():
    image = disc(column=10.0).expand(64, -1, -1, -1)
    right = change(image, flip=True)[0][:, 0, :, 32:].sum(dim=(1, 2)) > 0
    assert 20 < right.sum() < 44


def test_intensities_change_in_the_image_alone_and_not_in_the_background():
    image = disc().expand(8, -1, -1, -1) * 3
    changed, masks = change(image, gain=0.2, offset=0.5)
    inside = changed[:, 0, 31, 31]
    assert inside.unique().numel() == 8
    assert ((inside - 3).abs() <= 3 * 0.2 + 0.5 + 1e-5).all()
    assert torch.equal(changed == 0, image == 0)
    assert torch.equal(masks, (image > 0).float())


def test_the_same_generator_gives_the_same_batch_and_every_sample_its_own_change():
    image = torch.randn(1, 1, 32, 32).expand(3, -1, -1, -1)
    first, second = (Augmentation()(image, image, generator=torch.Generator().manual_seed(1))[0] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("wrong", [{"rotation": 200}, {"shear": 90}, {"scale": (0, 1)}, {"gain": 1.0}, {"offset": -1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(UserError):
        Augmentation(**wrong)
