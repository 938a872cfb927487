"""Functions that move data between environments, buffers and learners."""
