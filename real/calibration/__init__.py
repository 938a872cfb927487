"""Cameras of a robot: what their lens does and where they stand, found from pictures and the poses of its tool."""
