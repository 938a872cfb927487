"""How messages travel between processes: by UDP, unless a Fast DDS profile that somebody has given says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from robot_rl.real.graph import RAW_PROFILE, find_file

RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")


def spare_shared_memory(*, pictures: bool) -> None:
    """Have Fast DDS carry this process's messages by UDP alone; call it before rclpy.init.

    With shared memory it may wait 0.33 s for the port of another process that starts or ends, under a lock that every
    message which comes in needs: states, commands and the e-stop wait as long (eProsima/Fast-DDS issue 6535).

    Args:
        pictures: this process may read or send raw pictures, which UDP loses: where our profile for them is given
            (`fastdds_shm.xml`), it stays. A profile of the user's own stays in any case.
    """
    given = next((os.environ[name] for name in PROFILES if os.environ.get(name)), "")
    if given and (pictures or Path(given).name != RAW_PROFILE):
        return
    for name in PROFILES:
        os.environ.pop(name, None)
    local = os.environ.get(RANGE, "").upper() == "LOCALHOST"
    if local:
        os.environ[RANGE] = "SUBNET"  # the profile keeps to this machine, and newer middleware reads it only then
    os.environ[PROFILES[0]] = find_file("fastdds_loopback.xml" if local else "fastdds_udp.xml")
