"""Network parts shared by the learners."""
