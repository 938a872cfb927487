"""What each verb does, on built objects: training runs, evaluation, collection, diagnosis. Knows no Hydra."""
