"""Python graders, formulas and templates that judge samples."""

from __future__ import annotations

from typing import Any, Final

from gradbus_hostile.material import Json, Material, row
from gradbus_hostile.table.submission import ANY, FAILED, HARMLESS, REFUSED_OR_FAILED, Submission, grader, spec

_TEN_STEPS: Final = {"schedule": {"steps": 10, "groups_per_step": 4}}
_TURNS: Final = (
    "seen = 0\ndef grade(sample, item):\n    global seen\n    seen += 1\n    if seen > 40:\n        {}\n    return seen % 7 / 7\n"
)
"""Good for forty samples of a process, about five steps of two processes."""
_WRITES: Final = """import os
def grade(sample, item):
    for file in range(3, 30):
        try:
            os.write(file, {})
        except OSError:
            pass
    return 1.0
"""
_TIMERS: Final = """import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
def grade(sample, item):
    return 1.0
"""
_NEVER_GOES: Final = """class Evil:
    def __del__(self):
        while True:
            pass
def grade(sample, item):
    Evil()
    return 1.0
"""
_OTHER_NAMES: Final = """import random
def grade(sample, item):
    return {"reward": random.random(), **{str(random.random()): 1.0 for _ in range(60)}}
"""
_OUTPUT: Final = "{{ sample.output_text }}"


def _formula(text: str) -> dict[str, Any]:
    part = {"type": "string_check", "operation": "like", "input": _OUTPUT, "reference": "a"}
    return {"grader": {"type": "multi", "graders": {"a": part}, "calculate_output": text}}


def _huge_texts(material: Material) -> Json:
    """A template that names a column of a megabyte four thousand times."""
    body = material.rows([row(huge="x" * 1_000_000)] * 8, rollout={"group_size": 2})
    return body | {"reward": _check("{{ item.huge }}" * 4000)}


def _check(template: str) -> dict[str, Any]:
    return {"grader": {"type": "text_similarity", "input": template, "reference": template}}


GRADERS: Final = (
    grader(
        "1e200 now and then",
        "def grade(sample, item):\n    return 1e200 if 'a' in sample['output_text'] else len(sample['output_text']) / 9\n",
        ANY,
    ),
    grader("NaN", "def grade(sample, item):\n    return float('nan')\n"),
    grader("infinity", "def grade(sample, item):\n    return float('inf')\n"),
    grader("a text", "def grade(sample, item):\n    return 'good'\n"),
    grader("nothing", "def grade(sample, item):\n    return None\n"),
    grader("an integer of 400 digits", "def grade(sample, item):\n    return 10 ** 400\n"),
    grader("an exception", "def grade(sample, item):\n    raise RuntimeError('evil')\n"),
    grader("an exit", "import sys\ndef grade(sample, item):\n    sys.exit(0)\n"),
    grader("endless recursion", "def grade(sample, item):\n    return grade(sample, item)\n"),
    grader("a memory bomb", "def grade(sample, item):\n    return len('a' * 10**11)\n"),
    grader("a fork bomb", "import os\ndef grade(sample, item):\n    while True:\n        os.fork()\n"),
    grader(
        "a thousand threads",
        "import threading\ndef grade(sample, item):\n    [threading.Thread(target=input).start() for _ in range(1000)]\n",
    ),
    grader("a flood of output", "def grade(sample, item):\n    while True:\n        print('evil' * 1000)\n"),
    grader("kills its parent", "import os\ndef grade(sample, item):\n    os.kill(os.getppid(), 9)\n    return 1.0\n", ANY),
    grader("broken syntax", "def grade(:\n", REFUSED_OR_FAILED),
    grader("900 elif", "if a: ...\n" + "elif a: ...\n" * 900, REFUSED_OR_FAILED),
    grader("a text of 40,000 parts", "f'" + "{a}" * 40_000 + "'", REFUSED_OR_FAILED),
    grader("no function", "x = 1\n", REFUSED_OR_FAILED),
    grader("40,000 attributes", "x" + ".x" * 40_000 + "\ndef grade(sample, item):\n    return 1.0\n", REFUSED_OR_FAILED),
    grader("50,000 signs", "x = " + "-" * 50_000 + "1\ndef grade(sample, item):\n    return 1.0\n", REFUSED_OR_FAILED),
    grader(
        "a dictionary of a million", "def grade(sample, item):\n    return {'reward': 1.0, **{str(n): 1.0 for n in range(10**6)}}\n", ANY
    ),
    grader(
        "a value whose name takes for ever",
        "class E:\n    def __repr__(self):\n        while True: pass\ndef grade(sample, item):\n    return E()\n",
        timeout_seconds=1.0,
    ),
    grader("garbage on every open file", _WRITES.format("b'[evil' * 999"), ANY, timeout_seconds=1.0),
    grader("rewards that it writes itself", _WRITES.format("b'[0, [1e308]]\\n' * 99"), ANY, timeout_seconds=1.0),
    grader("no open files", "import os\ndef grade(sample, item):\n    os.closerange(0, 100)\n    return 1.0\n", timeout_seconds=1.0),
    grader("a segmentation fault", "import ctypes\ndef grade(sample, item):\n    return ctypes.string_at(0)\n"),
    grader(
        "another json", "import json\njson.dumps = lambda *_, **__: 'evil'\ndef grade(sample, item):\n    return 1.0\n", timeout_seconds=1.0
    ),
    grader("no end of its source", "while True: pass\ndef grade(sample, item):\n    return 1.0\n", timeout_seconds=1.0),
    grader("raises after five good steps", _TURNS.format("raise RuntimeError('evil')"), ANY, **_TEN_STEPS),
    grader("exits after five good steps", _TURNS.format("import os; os._exit(1)"), ANY, **_TEN_STEPS),
    grader("hangs after five good steps", _TURNS.format("while True: pass"), ANY, timeout_seconds=1.0, **_TEN_STEPS),
    grader("timers without end", _TIMERS, timeout_seconds=1.0),
    grader("an object that never goes", _NEVER_GOES, timeout_seconds=1.0),
    grader("other names for every sample", _OTHER_NAMES, HARMLESS),
    grader("no time at all", "def grade(sample, item):\n    return 1.0\n", REFUSED_OR_FAILED, timeout_seconds=1e-9),
    spec("a formula of towers", REFUSED_OR_FAILED, reward=_formula("9 ** 9 ** 9 ** a")),
    spec("a formula that divides by zero", ANY, reward=_formula("1 / (a - a)")),
    spec("a formula of complex numbers", ANY, reward=_formula("(0 - 1 - a) ** 0.5")),
    spec("a formula of 900 signs", ANY, reward=_formula("-" * 900 + "a")),
    spec("a formula that calls", reward=_formula("__import__('os').system('true')")),
    spec("a formula of 1,400 characters without a value", FAILED, reward=_formula("a - a" + " + 9 ** 9 ** 9" * 100)),
    Submission("spec: a template that makes four gigabytes", _huge_texts, FAILED),
    spec("a template of 4,000 names", HARMLESS, reward=_check(_OUTPUT * 2600)),
    spec("a template that is never closed", reward=_check("{{ " * 10_000)),
)
