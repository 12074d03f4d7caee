"""The metrics of training: steps, the policy, and the groups that the trainer consumes."""

from __future__ import annotations

from typing import Final

from gradbus.telemetry.registry.metric import LONG_SECONDS, RUN, Metric

TRAINING: Final = (
    Metric("gradbus.step.duration", "histogram", "s", ("trainer",), "Compute time of a step: training and export.", (), LONG_SECONDS),
    Metric(
        "gradbus.run.time",
        "counter",
        "s",
        ("trainer", "rollout", "conductor"),
        "Time by phase. A trainer waits, trains or publishes; generation, scoring and reference run in parallel.",
        (RUN, "gradbus.phase"),
    ),
    Metric("gradbus.trained.steps", "counter", "{step}", ("trainer",), "Steps trained.", (RUN,)),
    Metric("gradbus.trained.tokens", "counter", "{token}", ("trainer",), "Trainable tokens of all steps.", (RUN,)),
    Metric(
        "gradbus.reward.mean",
        "gauge",
        "{reward}",
        ("trainer",),
        "Mean reward of the step's scored samples, and of each reward component.",
        (RUN, "gradbus.reward.part"),
    ),
    Metric(
        "gradbus.reward.std",
        "gauge",
        "{reward}",
        ("trainer",),
        "Standard deviation of the reward over the step's scored samples, and of each reward component.",
        (RUN, "gradbus.reward.part"),
    ),
    Metric(
        "gradbus.policy.kl", "gauge", "{nat}", ("trainer",), "KL divergence from the base model, k3 estimate, mean over tokens.", (RUN,)
    ),
    Metric("gradbus.policy.entropy", "gauge", "{nat}", ("trainer",), "Entropy of the policy, mean over tokens.", (RUN,)),
    Metric("gradbus.policy.loss", "gauge", "{loss}", ("trainer",), "The step's loss.", (RUN,)),
    Metric("gradbus.policy.grad_norm", "gauge", "{norm}", ("trainer",), "Norm of the gradient before clipping.", (RUN,)),
    Metric("gradbus.policy.learning_rate", "gauge", "{rate}", ("trainer",), "Learning rate of the step.", (RUN,)),
    Metric(
        "gradbus.policy.clip_fraction",
        "gauge",
        "{share}",
        ("trainer",),
        "Fraction of the trained tokens whose ratio is below (low) or above (high) the clip range.",
        (RUN, "gradbus.side"),
    ),
    Metric(
        "gradbus.policy.ratio",
        "gauge",
        "{ratio}",
        ("trainer",),
        "Importance ratio between the trained policy and the sampling policy.",
        (RUN, "gradbus.statistic"),
    ),
    Metric(
        "gradbus.policy.logprob_difference",
        "gauge",
        "{nat}",
        ("trainer",),
        "Mean absolute difference of log-probabilities between trainer and rollout.",
        (RUN,),
    ),
    Metric(
        "gradbus.response.length",
        "gauge",
        "{token}",
        ("trainer",),
        "Response length of the step.",
        (RUN, "gradbus.statistic"),
    ),
    Metric("gradbus.response.truncated", "gauge", "{share}", ("trainer",), "Fraction of responses truncated at max_new_tokens.", (RUN,)),
    Metric(
        "gradbus.samples.length",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples with at most `le` response tokens: cumulative histogram buckets.",
        (RUN, "le"),
        (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    ),
    Metric(
        "gradbus.samples.staleness",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples with a staleness of at most `le` versions when trained: cumulative histogram buckets.",
        (RUN, "le"),
        (0, 1, 2, 3, 4, 6, 8, 12, 16, 32),
    ),
    Metric(
        "gradbus.samples.masked",
        "counter",
        "{sample}",
        ("trainer",),
        'Masked samples of trained groups: not scorable, or cut off in a run with `truncated = "mask"`.',
        (RUN,),
    ),
    Metric(
        "gradbus.groups",
        "counter",
        "{group}",
        ("trainer",),
        "Groups consumed from the log, by verdict: trained, filtered (no learning signal) or dropped (too stale).",
        (RUN, "gradbus.verdict"),
    ),
    Metric(
        "gradbus.groups.samples",
        "counter",
        "{sample}",
        ("trainer",),
        "Samples of the groups consumed from the log, by verdict.",
        (RUN, "gradbus.verdict"),
    ),
    Metric(
        "gradbus.groups.tokens",
        "counter",
        "{token}",
        ("trainer",),
        "Response tokens of the groups consumed from the log, by verdict; divided by samples, their mean length.",
        (RUN, "gradbus.verdict"),
    ),
)
