"""Where the recursions run: NumPy always, numba when installed, torch for CUDA and autograd, Triton on large batches."""

from robot_rl.advantage.backends.select import available, backend, use_backend

__all__ = ["available", "backend", "use_backend"]
