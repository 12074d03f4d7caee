"""The built-in graders, and the result of a scorer. To serve a scorer of your own, see `gradbus.graders.serve`."""

from gradbus.graders.check import check_grader, source_faults
from gradbus.graders.formula import Formula
from gradbus.graders.result import ScoreResult
from gradbus.graders.template import InvalidSampleError, Template
from gradbus.graders.text_comparison import GradeFunction, compiled_grader, string_check, text_similarity

__all__ = [
    "Formula",
    "GradeFunction",
    "InvalidSampleError",
    "ScoreResult",
    "Template",
    "check_grader",
    "compiled_grader",
    "source_faults",
    "string_check",
    "text_similarity",
]
