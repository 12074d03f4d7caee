"""Rewards: does the scorer answer, and how fast?"""

from panels import Board, Panel, Query, Row, Variable

from boards.variables import ONE_RUN, STARTS

_WINDOW = "[$__rate_interval]"
_SCORER = 'gradbus_scorer=~"$scorer"'


def _samples(status: str) -> str:
    return f'sum by (gradbus_scorer) (rate(gradbus_reward_samples_total{{{_SCORER}, gradbus_reward_status=~"{status}"}}{_WINDOW}))'


REWARDS = Board(
    uid="gradbus-rewards",
    title="Gradbus / Rewards",
    description="Does the scorer answer, and how fast? A failure never counts as a reward of 0: its samples are scored again.",
    variables=[ONE_RUN, Variable("scorer", "Scorer", "label_values(gradbus_reward_samples_total, gradbus_scorer)")],
    annotations=[STARTS],
    rows=[
        Row(
            "Now",
            [
                Panel(
                    "Groups to score again",
                    "Groups whose last scoring attempt failed. The conductor retries after 0.1 s to 10 s without a limit, or in a `free`"
                    " run until the group's deadline. This backoff replaces a circuit breaker.",
                    [Query('sum(gradbus_groups_unscored{gradbus_run_id="$run"})', "groups")],
                    kind="stat",
                    unit="none",
                    width=6,
                    height=5,
                    defaults={
                        "color": {"mode": "thresholds"},
                        "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1}]},
                    },
                ),
                Panel(
                    "Runs waiting for a reward",
                    "Runs in the state `waiting_for_reward`. The run's status names the scorer and its last answer.",
                    [Query('sum(gradbus_run_state{gradbus_state="waiting_for_reward"}) or vector(0)', "runs")],
                    kind="stat",
                    unit="none",
                    width=6,
                    height=5,
                    defaults={
                        "color": {"mode": "thresholds"},
                        "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1}]},
                    },
                ),
                Panel(
                    "Calls in flight",
                    "Calls running in the scorer or waiting for it. `GRADBUS_CALLS_PER_SCORER` limits the running ones.",
                    [Query(f"sum by (gradbus_scorer) (gradbus_reward_calls{{{_SCORER}}})", "{{gradbus_scorer}}", now=True)],
                    kind="stat",
                    unit="none",
                    width=6,
                    height=5,
                    options={"graphMode": "none"},
                ),
                Panel(
                    "Samples scored per second",
                    "All selected scorers together.",
                    [Query(f"sum({_samples('ok')})", "ok")],
                    kind="stat",
                    unit="none",
                    width=6,
                    height=5,
                ),
            ],
        ),
        Row(
            "Latency",
            [
                Panel(
                    "Duration of a call",
                    "One call scores all waiting groups. Near `reward.timeout_seconds` samples begin to fail. Diamonds open a trace with"
                    " the time of each part of the grader.",
                    [
                        Query(
                            f"histogram_quantile({share}, sum by (le, gradbus_scorer)"
                            f" (rate(gradbus_reward_duration_seconds_bucket{{{_SCORER}}}{_WINDOW})))",
                            "{{gradbus_scorer}} " + name,
                            exemplars=share == 0.5,
                        )
                        for share, name in ((0.5, "median"), (0.95, "95 %"))
                    ],
                    unit="s",
                    width=12,
                ),
                Panel(
                    "Calls by duration",
                    "A second band far above the first means that some samples are slow to score, or that the scorer queues.",
                    [
                        Query(
                            f"sum by (le) (increase(gradbus_reward_duration_seconds_bucket{{{_SCORER}}}{_WINDOW}))",
                            "{{le}}",
                            heat=True,
                        )
                    ],
                    kind="heatmap",
                    width=12,
                    options={"yAxis": {"axisPlacement": "left", "unit": "s"}},
                ),
            ],
        ),
        Row(
            "Answers",
            [
                Panel(
                    "Samples by answer",
                    "ok; invalid: the scorer cannot score the sample; error: the scorer failed and the sample is scored again.",
                    [
                        Query(
                            f"sum by (gradbus_reward_status) (rate(gradbus_reward_samples_total{{{_SCORER}}}{_WINDOW}))",
                            "{{gradbus_reward_status}}",
                        )
                    ],
                    custom={"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30},
                ),
                Panel(
                    "Errors by cause",
                    "timeout: too slow. unreachable: not running, or a wrong address. refused: an address or grader that is not allowed."
                    " scorer: the scorer itself answers `error`. malformed, missing: its answer breaks the contract.",
                    [
                        Query(
                            f"sum by (gradbus_reward_cause) (rate(gradbus_reward_failures_total{_WINDOW}))",
                            "{{gradbus_reward_cause}}",
                        )
                    ],
                ),
                Panel(
                    "Fraction of samples without a score",
                    "Errors and invalid samples as a fraction of all, by scorer.",
                    [
                        Query(
                            f"({_samples('invalid|error')} or 0 * {_samples('.*')}) / ({_samples('.*')} > 0)",
                            "{{gradbus_scorer}}",
                        )
                    ],
                    unit="percentunit",
                    defaults={"min": 0, "max": 1},
                ),
            ],
        ),
    ],
)
