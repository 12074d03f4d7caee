"""The built-in graders, and the result of a scorer. To serve a scorer of your own, see `gradbus.graders.serve`."""

from gradbus.graders.check import check_grader, source_faults
from gradbus.graders.compiled import QUICK_GRADERS, GradeFunction, QuickGrader, compiled_grader
from gradbus.graders.formula import Formula
from gradbus.graders.result import ScoreResult
from gradbus.graders.template import InvalidSampleError, Template
from gradbus.graders.text_comparison import string_check, text_similarity

__all__ = [
    "QUICK_GRADERS",
    "Formula",
    "GradeFunction",
    "InvalidSampleError",
    "QuickGrader",
    "ScoreResult",
    "Template",
    "check_grader",
    "compiled_grader",
    "source_faults",
    "string_check",
    "text_similarity",
]
