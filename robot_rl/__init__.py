"""robot_rl: train, improve and deploy robot control policies, from simulation to the robot."""

__version__ = "0.1.0"
