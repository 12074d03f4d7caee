"""The priority at which the programs of users compute, beside the services that run them."""

from __future__ import annotations

from typing import Final

USERS_NICENESS: Final = 5
"""Added to the niceness of the service: for graders, for tokenizers with their chat templates, and for the parser of graders' sources.

Where the processor is scarce, such a program gets a third of what a service gets. Not less: a grader's deadline goes by the clock, and at a
niceness of 19, with a seventieth, honest graders would miss it on a busy machine.
"""
