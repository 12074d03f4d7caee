"""The seven dashboards."""

from boards.cluster import CLUSTER
from boards.environments import ENVIRONMENTS
from boards.rewards import REWARDS
from boards.run import RUN
from boards.services import SERVICES
from boards.time import TIME
from boards.weights import WEIGHTS

BOARDS = (RUN, TIME, WEIGHTS, REWARDS, ENVIRONMENTS, SERVICES, CLUSTER)
