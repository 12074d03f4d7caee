"""A reward service over gRPC: how much of the answer is right, and whether all of it is.

python reward.py [HOST:PORT]
"""

import sys

from gradbus.graders import ScoreResult
from gradbus.graders.serve import Sample, serve_scorer


def score(sample: Sample) -> ScoreResult:
    """In [0, 1]; an exception would be an error of this sample alone, never a reward of 0."""
    right, given = sample.item["answer"], sample.response
    digits = sum(a == b for a, b in zip(given, right, strict=False)) / len(right)
    exact = float(given == right and sample.finish_reason == "stop")
    return ScoreResult(0.5 * digits + 0.5 * exact, components={"digits": digits, "exact": exact})


if __name__ == "__main__":
    serve_scorer(score, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
