"""The person: what they drive with, what they see, what is recorded of them, and the loop that learns from it."""
