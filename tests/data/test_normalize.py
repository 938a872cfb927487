import numpy as np
import pytest
import torch

from robot_rl.data.normalize import DataNorm


def test_running_norm_batches_give_the_statistics_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(3.0, 2.0, (1000, 4))
    norm = DataNorm(4, clip=None)
    for part in np.split(data, [1, 2, 10, 500]):
        norm.update(part)
    assert norm.count == 1000
    np.testing.assert_allclose(norm.mean, data.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.std, data.std(0), rtol=1e-12)
    np.testing.assert_allclose(norm(data.astype(np.float32)), (data - data.mean(0)) / data.std(0), atol=1e-5)


def test_running_norm_large_offset_keeps_its_precision() -> None:
    # Sum of squares minus squared sum would lose all digits at 1e8; the deviation of -1, 0, 1 is sqrt(2/3).
    norm = DataNorm(1)
    for x in (-1.0, 0.0, 1.0):
        norm.update(np.array([[1e8 + x]]))
    assert norm.std[0] == pytest.approx(np.sqrt(2 / 3), rel=1e-9)


def test_running_norm_tensor_and_array_agree_and_leading_axes_are_free() -> None:
    rng = np.random.default_rng(1)
    data = rng.normal(size=(5, 7, 3)).astype(np.float32)
    a, b = DataNorm((3,)), DataNorm((3,))
    a.update(data)
    b.update(torch.from_numpy(data))
    np.testing.assert_array_equal(a.mean, b.mean)
    out = b(torch.from_numpy(data))
    assert out.dtype == torch.float32
    np.testing.assert_allclose(a(data), out.numpy(), rtol=1e-6)
    np.testing.assert_allclose(a(data) * a.std + a.mean, data, atol=1e-5)


def test_running_norm_clips() -> None:
    norm = DataNorm(1, clip=2.0)
    norm.update(np.array([[-1.0], [1.0]]))
    assert norm(np.array([[100.0]], np.float32))[0, 0] == 2.0
    assert norm(torch.tensor([[-100.0]]))[0, 0] == -2.0


def test_running_norm_constant_component_passes_with_scale_one() -> None:
    norm = DataNorm(2)
    norm.update(np.array([[5.0, 0.0], [5.0, 4.0]]))
    np.testing.assert_allclose(norm(np.array([[5.5, 2.0]], np.float32)), [[0.5, 0.0]])


def test_running_norm_without_data_is_the_identity() -> None:
    assert DataNorm(2)(np.array([1.0, -2.0], np.float32)).tolist() == [1.0, -2.0]


def test_running_norm_frozen_ignores_updates() -> None:
    norm = DataNorm(1)
    norm.update(np.array([[1.0], [3.0]]))
    norm.frozen = True
    norm.update(np.array([[100.0]]))
    assert (norm.count, norm.mean[0]) == (2, 2.0)


def test_running_norm_state_continues() -> None:
    rng = np.random.default_rng(2)
    a, b = DataNorm(3), DataNorm(3)
    a.update(rng.normal(size=(10, 3)))
    b.load_state_dict(a.state_dict())
    more = rng.normal(size=(10, 3))
    a.update(more)
    b.update(more)
    np.testing.assert_array_equal(a.std, b.std)
    assert a.count == b.count


def test_running_norm_bad_batches_are_refused_and_change_nothing() -> None:
    norm = DataNorm(2)
    norm.update(np.ones((3, 2)))
    with pytest.raises(ValueError, match="row 1, component"):
        norm.update(np.array([[0.0, 1.0], [np.nan, 0.0]]))
    with pytest.raises(ValueError, match="expected"):
        norm.update(np.ones((4, 3)))
    with pytest.raises(ValueError, match="shape"):
        norm.load_state_dict(DataNorm(5).state_dict())
    assert norm.count == 3
