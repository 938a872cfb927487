"""Where the recursions run: NumPy always, numba when installed, torch for CUDA and autograd, Triton for wide CUDA data."""

from robot_rl.advantage.backends.select import available, backend, use_backend

__all__ = ["available", "backend", "use_backend"]
