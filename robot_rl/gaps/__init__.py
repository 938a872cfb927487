"""What is different between the robot that was meant and the one that is there, one small class for each.

The same object is played by the simulated robot (`inject.gaps`), trained against, and named by the checks before the
first motion (`robot_rl.real.core.shadow`).
"""

from robot_rl.gaps.body import GravityFrame, QuaternionOrder, TurnScale
from robot_rl.gaps.catalogue import KINDS, read_gaps, read_gaps_text
from robot_rl.gaps.contract import Gap, Measured, apply_gaps, inverse_of
from robot_rl.gaps.drive import CommandGain, Stiction
from robot_rl.gaps.joints import JointOffset, JointOrder, JointScale, JointSign, VelocityMissing
from robot_rl.gaps.pictures import CameraMoved, CamerasSwapped
from robot_rl.gaps.timing import Dropped, Late

__all__ = [
    "KINDS",
    "CameraMoved",
    "CamerasSwapped",
    "CommandGain",
    "Dropped",
    "Gap",
    "GravityFrame",
    "JointOffset",
    "JointOrder",
    "JointScale",
    "JointSign",
    "Late",
    "Measured",
    "QuaternionOrder",
    "Stiction",
    "TurnScale",
    "VelocityMissing",
    "apply_gaps",
    "inverse_of",
    "read_gaps",
    "read_gaps_text",
]
