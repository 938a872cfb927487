"""Array kinds in which the golden numbers must hold, and the comparison they are held to."""

import numpy as np
import pytest
import torch


class Kind:
    """Makes arrays of one kind and precision and compares results with plain numbers."""

    def __init__(self, name):
        self.library, self.precision = name.split("-")
        self.tolerance = 1e-6 if self.precision == "float64" else 1e-5

    def x(self, values):
        array = np.array(values, dtype=self.precision)
        return torch.from_numpy(array) if self.library == "torch" else array

    def i(self, values):
        array = np.array(values, dtype=np.int64)
        return torch.from_numpy(array) if self.library == "torch" else array

    def b(self, values):
        array = np.array(values, dtype=bool)
        return torch.from_numpy(array) if self.library == "torch" else array

    def same(self, got, want):
        """Same kind and dtype as the inputs, and equal to the numbers within the tolerance of the precision."""
        if self.library == "torch":
            assert isinstance(got, torch.Tensor)
            got = got.detach().numpy()
        else:
            assert isinstance(got, np.ndarray | np.generic)
        if got.dtype.kind == "f":
            assert got.dtype == self.precision
        self.near(got, want)

    def near(self, got, want):
        """Equal within the tolerance, whatever the dtype (statistics are float64)."""
        got = got.detach().numpy() if isinstance(got, torch.Tensor) else np.asarray(got)
        # Printed values are rounded to 6 digits, hence the half unit of the last digit.
        np.testing.assert_allclose(
            got.astype(np.float64), np.array(want, dtype=np.float64), rtol=self.tolerance, atol=self.tolerance
        )


each_kind = pytest.mark.parametrize(
    "kind",
    [Kind(n) for n in ("numpy-float64", "numpy-float32", "torch-float64", "torch-float32")],
    ids=["numpy64", "numpy32", "torch64", "torch32"],
)
