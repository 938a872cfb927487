"""What the command line does: one function per verb, from configuration to objects."""
