"""All hostile submissions, a subject in each file of the folder `table`."""

from __future__ import annotations

from typing import Final

from gradbus_hostile.table.conduct import CONDUCTS
from gradbus_hostile.table.families import FAMILIES
from gradbus_hostile.table.given import GIVEN
from gradbus_hostile.table.graders import GRADERS
from gradbus_hostile.table.reward_models import REWARD_MODELS
from gradbus_hostile.table.rows import DATA
from gradbus_hostile.table.scorers import SCORERS
from gradbus_hostile.table.specs import SPECS
from gradbus_hostile.table.submission import Submission
from gradbus_hostile.table.tokenizers import TEMPLATES, TOKENIZERS
from gradbus_hostile.table.weights import CONFIGS, WEIGHTS

SUBMISSIONS: Final[tuple[Submission, ...]] = (
    *(*TEMPLATES, *TOKENIZERS, *CONFIGS, *WEIGHTS, *FAMILIES),
    *(*DATA, *GIVEN, *GRADERS, *SPECS, *SCORERS, *REWARD_MODELS, *CONDUCTS),
)
