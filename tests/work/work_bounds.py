"""The bounds of the work counters. A change that does less lowers its bound; one that needs more argues here why.

`lines` are executed lines of the repository's Python, rounds of loops and comprehensions among them, and `calls` are calls of its
functions and rounds of its generators. A number for a sample is what each sample adds that is added to a step's groups; a number for a
group of four is what each added group adds, with its samples. Counted with Python 3.11, which `make test` installs.
`pytest -s tests/integration/*/test_work.py` prints what is counted now. Bounds of lines, and of calls by group, are one in a hundred above
the count: on a busy machine a poll or a retry may fall into every attempt.
"""

from __future__ import annotations

from typing import Final

BOUNDS: Final[dict[str, float]] = {
    # Decoding its messages, advantage, mask and reward; finding and packing the prompts that samples share; its place in the attention.
    # A sample may have several sequences: going through the one that it has, and keeping which sample a row is of, is fourteen lines.
    # The least and the largest reward of a step are told: two lines.
    "trainer: lines a sample": 100,
    "trainer: calls a sample": 13,
    # Beside those of its samples: checking and decoding the entry, the group's advantages, its place in the frontier. The estimator of the
    # advantages is a function of its own beside the verdict: ten lines a group, none a sample. Each entry is asked for a teacher's
    # log-probabilities and rows, and for marks of its samples: twelve lines a group, none a sample. Of its rows, which may be more than
    # its samples, each keeps whose it is: fifteen lines a group, beside those of its samples.
    # Whether one of its samples is the baseline of the others: five calls a group.
    "trainer: lines a group of four": 624,
    "trainer: calls a group of four": 136,
    # Forward, loss, backward, clipping and AdamW of a model of one layer and 12 parameters, outside and inside our own operators. Short
    # groups are gathered into blocks and back: some forty operators a layer, for which each prompt is computed once. The largest KL of a
    # token is told: five operators. The step's KL is a tensor, which ranks add up: two.
    "trainer: operators a step of one layer": 554,
    # A step of equal rows is a few large operators, however many rows.
    "trainer: operators a sample": 0,
    # The trainer and the weight store, with a checkpoint at every second step: events of the step and of the checkpoint, heads of version
    # and checkpoint with a read of the latter. On a busy machine versions and checkpoints are swept apart, with a read each: half a
    # message more.
    "trainer: messages a step": 4,
    # PublishVersion; CommitCheckpoint at every second step.
    "trainer: calls a step": 1.5,
    # The log is read in one piece ahead of the steps.
    "trainer: commands a step": 0,
    # The version's file; the optimiser's at every second step.
    "trainer: objects a step": 1.5,
    # Their bytes, of a model of 16 dimensions.
    "trainer: bytes a step": 25_678,
    # A checkpoint's files and the folders above them.
    "trainer: syncs a step": 6.5,
    # Its seed, its row in the engine, its span, its message; the ids on their way to the tokenizer's process, one line a token. The
    # span asks for its version: an engine that left its device loads the same one again.
    "rollout: lines a sample": 71,
    "rollout: calls a sample": 12,
    # Beside those of its samples: the prompt's row and lane, the header of its message, the command that stores it, its claim. Lanes
    # compute different chunks of their prompts, for those that are kept:
    # thirteen lines, two calls; from which sample on it is greedy: five lines.
    "rollout: lines a group of four": 381,
    "rollout: calls a group of four": 69,
    # Forward of a model of one layer over one page of keys, draw and bookkeeping, for all slots at once; a view is an operator too.
    "rollout: operators a decode step": 67,
    # The task itself, the worker's fetch, its acknowledgement, the hint.
    "rollout: messages a task": 4,
    # One MSETNX for the task's two groups.
    "rollout: commands a task": 1,
    # Its size and its place in the call of the scorer, its answer, its reward's part in the verdict. Going through its sequences is
    # eight lines.
    "conductor: lines a sample": 58,
    "conductor: calls a sample": 7,
    # Beside those of its samples: its task, its place in the schedule, its entry, the verdict by the estimator. Whether it may have a
    # journal, and whether its run counts masked samples: four lines and a call.
    # Whether one of its samples is the others' baseline: five calls.
    "conductor: lines a group of four": 443,
    "conductor: calls a group of four": 98,
    # Each run looks twice a second at its workers, faults and overdue groups, and compares its status with the stored one.
    # Whether its user wants another scorer: nine lines and five calls.
    "conductor: lines a look at a run at rest": 460,
    "conductor: calls a look at a run at rest": 184,
    # The task with all four groups.
    "conductor: messages a step of four groups": 1,
    # One MGET and one call of the function that appends, which reads the term and for each group sets a bit, appends and deletes.
    "conductor: commands a step of four groups": 15,
    # One call of the scorer.
    "conductor: calls a step of four groups": 1,
}
