"""What a run needs, by arithmetic and before anything starts: memory by tenant, the time of a step, and how to divide cards."""

from gradbus.plan.cards import CARDS, DEFAULT_CARD, MOST_CARDS, Card, card_of
from gradbus.plan.model_folder import read_size
from gradbus.plan.model_size import ModelSize
from gradbus.plan.plan import Plan, make_plan
from gradbus.plan.workload import Workload

__all__ = ["CARDS", "DEFAULT_CARD", "MOST_CARDS", "Card", "ModelSize", "Plan", "Workload", "card_of", "make_plan", "read_size"]
