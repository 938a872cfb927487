"""python -m robot_rl = robot-rl."""

from robot_rl.cli import main

if __name__ == "__main__":
    main()
