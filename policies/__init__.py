"""What learns: one method, one file, one learner class."""
