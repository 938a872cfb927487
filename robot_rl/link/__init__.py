"""Actor and learner in two processes or on two machines, over Zenoh: rows one way, weights the other, never pickle.

The actor never waits: its control loop hands over nothing but a signal, and a thread of the link does the rest. Rows
are sent in order, and again until the learner says that they are on its disk; what is named twice counts once. Weights
are fetched by the actor when it hears of newer ones; the newest wins, and what is damaged or does not fit is refused.
"""

from robot_rl.link.actor import ActorLink
from robot_rl.link.learner import LearnerLink
from robot_rl.link.session import LinkSettings

__all__ = ["ActorLink", "LearnerLink", "LinkSettings"]
