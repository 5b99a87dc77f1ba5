import numpy as np
import torch

from steelyard.imaging.anatomy.field import field_of

SHAPE = (5, 6, 7)


def test_linear_functions_are_read_exactly():
    field = field_of(np.zeros(SHAPE), origin=(-4.0, 2.0, 1.0), spacing=1.5)
    x, y, z = field.positions()
    field = field_of(2 * x - y + 3 * z, x * 0 + y * 0 + z, origin=field.origin, spacing=field.spacing)
    inside = torch.rand(100, 3, generator=torch.Generator().manual_seed(1)) * torch.tensor([6, 7.5, 9])
    points = inside + torch.tensor(field.origin)
    expected = torch.stack([2 * points[:, 0] - points[:, 1] + 3 * points[:, 2], points[:, 2]])
    torch.testing.assert_close(field.at(points), expected, rtol=1e-5, atol=1e-4)


def test_the_edge_goes_on_beyond_the_grid():
    values = np.arange(np.prod(SHAPE), dtype=float).reshape(SHAPE)
    field = field_of(values, origin=(0.0, 0.0, 0.0), spacing=1.0)
    far = torch.tensor([[100.0, 100.0, 100.0], [-100.0, -100.0, -100.0]])
    torch.testing.assert_close(field.at(far), torch.tensor([[values.max(), values.min()]], dtype=torch.float32))
