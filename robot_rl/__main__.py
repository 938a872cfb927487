"""python -m robot_rl = robot-rl, for tests and debuggers.

Python puts the current folder first on the path here, before any code of ours runs: in a folder that others filled,
start `robot-rl` instead.
"""

from robot_rl.cli import main

if __name__ == "__main__":
    main()
