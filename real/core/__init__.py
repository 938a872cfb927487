"""Safety and timing logic without ROS: every time comes in as an argument or through an injected clock."""
