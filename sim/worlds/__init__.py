"""One world, one file: MJCF model plus batched terms."""
