"""Test batches of images of different shapes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from smi.data import Batch, Pictures

SHAPES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=6)


def noise(shapes: list[tuple[int, int]]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(1, 256, (3, *shape), generator=generator, dtype=torch.uint8)
        for shape in shapes
    ]


@given(SHAPES)
def test_every_image_is_found_again(shapes: list[tuple[int, int]]) -> None:
    images = noise(shapes)
    pictures = Pictures.join(images)
    padded = pictures.padded()
    assert len(pictures) == len(shapes) == len(padded)
    assert pictures.shape.shape == (len(shapes), 2)
    assert len(pictures.pixels) == sum(image.numel() for image in images)
    for i, (height, width) in enumerate(shapes):
        assert torch.equal(pictures[i], images[i])
        assert torch.equal(padded[i, :, :height, :width], images[i])
        assert padded[i, :, height:].sum() == padded[i, :, :, width:].sum() == 0
    if shapes:
        assert padded.shape[2:] == tuple(max(sides) for sides in zip(*shapes, strict=True))


def test_squares_are_central() -> None:
    images = noise([(4, 8), (10, 4), (4, 4)])
    squares = Pictures.join(images).squares(4)
    assert torch.equal(squares[0], images[0][:, :, 2:6])
    assert torch.equal(squares[1], images[1][:, 3:7])
    assert torch.equal(squares[2], images[2])


def test_an_image_can_be_replaced_by_one_of_another_shape() -> None:
    first, second, third = noise([(4, 8), (10, 4), (5, 5)])
    pictures = Pictures.join([first, second])
    changed = pictures.replaced(0, third)
    assert torch.equal(changed[0], third)
    assert torch.equal(changed[1], second)
    assert torch.equal(pictures[0], first)


def test_a_batch_moves_to_a_device_and_keeps_its_shapes_on_the_cpu() -> None:
    pictures = Pictures.join(noise([(4, 8), (10, 4)]))
    batch = Batch(pictures, torch.arange(2), 0).to("meta")
    assert isinstance(batch.images, Pictures)
    assert batch.images.device.type == batch.index.device.type == "meta"
    assert batch.images.shape.device.type == "cpu"
    assert batch.images.padded().shape == (2, 3, 10, 8)
    squares = Batch(pictures.squares(4), torch.arange(2), 0).to("meta")
    assert squares.images.device.type == "meta"
