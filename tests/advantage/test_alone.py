"""The package is usable alone: importing it loads no simulator, no robot and no configuration system."""

import subprocess
import sys

FORBIDDEN = ["gymnasium", "mujoco", "hydra", "omegaconf", "rclpy", "cv2", "wandb", "stable_baselines3", "h5py", "numba"]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, robot_rl.advantage; print([x for x in {FORBIDDEN} if x in sys.modules])"
    assert run(code) == "[]"


def test_numpy_backend_file_imports_no_torch():
    code = (
        "import importlib.util, sys\n"
        "from pathlib import Path\n"
        "path = Path('robot_rl/advantage/backends/numpy_scan.py')\n"
        "spec = importlib.util.spec_from_file_location('numpy_scan', path)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "import numpy as np\n"
        "assert module.scan(np.ones(3), np.ones(3))[0] == 3\n"
        "print('torch' in sys.modules)"
    )
    assert run(code) == "False"


def test_works_without_numba():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'numba' else find(name)\n"
        "import numpy as np; from robot_rl.advantage import RolloutRows, available, rollout_gae\n"
        "end = np.array([False, True])\n"
        "rows = RolloutRows(np.ones(2), np.zeros(2), np.zeros(2), end, end)\n"
        "print(available(), rollout_gae(rows, gamma=1.0, gae_lambda=1.0)[1])"
    )
    assert run(code) == "('numpy', 'torch') [2. 1.]"
