"""Wrong masks on purpose: where they are moved to, and that the same seed moves them alike."""

import pytest
import torch

from steelyard.imaging.runs.mask_shift import MaskShift

SHIFT = MaskShift(domains=("flair@B",), pixels=5)


def squares(count):
    masks = torch.zeros(count, 1, 32, 48)
    masks[:, :, 14:18, 20:28] = 1
    return masks


def middles(masks):
    return torch.stack([mask[0].nonzero().float().mean(0) for mask in masks])


def test_every_mask_moves_as_far_in_a_direction_of_its_own():
    masks = squares(200)
    shifted = SHIFT(masks, generator=torch.Generator().manual_seed(0))
    steps = middles(shifted) - middles(masks)
    assert steps.norm(dim=1).sub(5).abs().max() < 0.75  # rounded to whole pixels
    assert len(steps.unique(dim=0)) > 20
    assert steps.mean(0).abs().max() < 1
    assert torch.equal(shifted.sum((1, 2, 3)), masks.sum((1, 2, 3)))


def test_what_leaves_the_plane_is_lost_and_does_not_come_in_elsewhere():
    masks = torch.zeros(50, 1, 16, 16)
    masks[:, :, :, 0] = 1
    shifted = SHIFT(masks, generator=torch.Generator().manual_seed(0))
    assert not shifted[..., 6:].any()
    assert {int(mask.any()) for mask in shifted} == {0, 1}
    far = MaskShift(domains=("flair",), pixels=100)
    assert not far(masks, generator=torch.Generator().manual_seed(0)).any()


@pytest.mark.parametrize("count", [1, 7])
def test_the_seed_settles_the_directions(count):
    first, again, other = (SHIFT(squares(count), generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
