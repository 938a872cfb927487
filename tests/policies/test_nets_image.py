"""Image augmentation, encoder and observation moments."""

import pytest
import torch

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.image import EncoderShape, ImageEncoder, random_shift
from robot_rl.policies.nets.net import step
from robot_rl.policies.nets.normalizer import RunningNorm


def test_random_shift_gives_crops_of_the_edge_padded_image():
    image = torch.arange(2 * 5 * 6 * 3, dtype=torch.uint8).reshape(2, 5, 6, 3)
    shifted = random_shift(image, 2, torch.Generator().manual_seed(3))
    padded = torch.nn.functional.pad(image.permute(0, 3, 1, 2).float(), (2, 2, 2, 2), mode="replicate")
    padded = padded.permute(0, 2, 3, 1).to(torch.uint8)
    assert shifted.dtype == torch.uint8
    for i in range(2):
        crops = [padded[i, y : y + 5, x : x + 6] for y in range(5) for x in range(5)]
        assert sum(torch.equal(shifted[i], crop) for crop in crops) >= 1


@pytest.mark.parametrize(("size", "pad"), [((9, 7), 3), ((4, 5), 4), ((3, 3), 5)])
def test_random_shift_of_bytes_is_that_of_other_numbers(size, pad):
    image = torch.randint(0, 256, (40, *size, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    fast = random_shift(image, pad, torch.Generator().manual_seed(1))
    slow = random_shift(image.float(), pad, torch.Generator().manual_seed(1))
    assert torch.equal(fast.float(), slow)


def test_random_shift_of_zero_is_the_image_itself():
    image = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    assert random_shift(image, 0, torch.Generator()) is image


def test_encoder_of_two_cameras_has_one_latent_each():
    shape = EncoderShape({"image.a": (16, 16, 3), "image.b": (12, 20, 3)}, (4, 4), (2, 2), 5)
    params = FlatParams(shape.shapes())
    shape.initialise(params, torch.Generator().manual_seed(0))
    encoder = ImageEncoder(shape, params, lr=1e-3)
    images = {
        "image.a": torch.randint(0, 255, (3, 16, 16, 3), dtype=torch.uint8),
        "image.b": torch.randint(0, 255, (3, 12, 20, 3), dtype=torch.uint8),
    }
    features = encoder(images)
    assert features.shape == (3, 10)
    assert shape.outputs == 10
    before = {name: view.clone() for name, view in params.view.items()}
    step(features.sum(), encoder)
    assert all(not torch.equal(view, before[name]) for name, view in params.view.items())
    assert all(float(params.grad_view[name].abs().sum()) > 0 for name in shape.shapes())


def test_encoder_that_shrinks_images_to_nothing_is_refused():
    with pytest.raises(ValueError, match="vanish"):
        EncoderShape({"image.a": (8, 8, 3)})
    with pytest.raises(ValueError, match="one stride per convolution"):
        EncoderShape({"image.a": (64, 64, 3)}, (4,), (2, 2))


def test_running_norm_equals_moments_of_all_rows():
    rows = torch.randn(90, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, 100.0, -3.0])
    norm = RunningNorm(3)
    for part in rows.split([20, 1, 69]):
        norm.observe(part)
    expected = (rows - rows.mean(0)) / rows.std(0, unbiased=False)
    torch.testing.assert_close(norm(rows), expected, rtol=1e-3, atol=1e-3)


def test_running_norm_caps_the_scale_of_constant_components():
    norm = RunningNorm(2, max_scale=50.0)
    norm.observe(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    assert norm.scale.tolist() == [50.0, pytest.approx(2.0)]  # std of {0, 1} is one half
