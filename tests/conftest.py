"""One torch thread per process: fastest for small networks, and waiting threads stall busy machines."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
