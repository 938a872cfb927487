"""Where the recursions run: NumPy always, numba when installed, torch and Triton for CUDA tensors."""

from robot_rl.advantage.backends.select import available, backend, use_backend

__all__ = ["available", "backend", "use_backend"]
