"""Multi-turn advantage core: torch and NumPy only, usable alone."""

from robot_rl.advantage.backends import available, use_backend
from robot_rl.advantage.gae import gae, rollout_gae
from robot_rl.advantage.scan import reverse_linear_scan, scan

__all__ = ["available", "gae", "reverse_linear_scan", "rollout_gae", "scan", "use_backend"]
