"""Products and passes with their gradients written out: what `Net` records as one node."""
