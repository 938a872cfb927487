"""Speed and learning measured against peers in the same run."""
