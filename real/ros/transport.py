"""How messages reach the process that must not wait: by UDP, unless a Fast DDS profile of the user's says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from robot_rl.real.graph import RAW_PROFILE, find_file

RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")


def spare_shared_memory() -> None:
    """Have Fast DDS carry this process's messages by UDP alone; call it before rclpy.init.

    With shared memory it may wait 0.33 s for the port of another process that starts or ends, under a lock that every
    message which comes in needs: states, commands and the e-stop wait as long (eProsima/Fast-DDS issue 6535). A profile
    of the user's own stays; that of raw pictures, which a deployment gives to all its processes, does not.
    """
    given = next((os.environ[name] for name in PROFILES if os.environ.get(name)), "")
    if given and Path(given).name != RAW_PROFILE:
        return
    for name in PROFILES:
        os.environ.pop(name, None)
    local = os.environ.get(RANGE, "").upper() == "LOCALHOST"
    if local:
        os.environ[RANGE] = "SUBNET"  # the profile keeps to this machine, and newer middleware reads it only then
    os.environ[PROFILES[0]] = find_file("fastdds_loopback.xml" if local else "fastdds_udp.xml")
