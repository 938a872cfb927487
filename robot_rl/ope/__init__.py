"""How good is a policy, told from logs alone: estimators, intervals, support, ranking; NumPy only."""
