"""Learning from logs: one method, one file; shared parts are in policies/nets."""
