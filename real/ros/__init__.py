"""ROS 2 shells around real/core: one module per node; the only importers of rclpy."""
