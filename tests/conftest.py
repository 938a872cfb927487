"""One torch thread per process: fastest for small networks, and threads that wait for each other stall busy machines."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402  (reads the variable when it is imported)

torch.set_num_threads(1)
