"""Where the time goes: why is a step slow?"""

from panels import Board, Panel, Query, Row, quantiles_of

from boards.variables import OF_RUN, ONE_RUN, STARTS

_WINDOW = "[$__rate_interval]"
_PHASES = f'avg by (gradbus_phase) (rate(gradbus_run_time_seconds_total{{{OF_RUN}, gradbus_phase!="wait"}}{_WINDOW}))'


def _share(phases: str) -> str:
    """Fraction of wall-clock time, as a value without labels."""
    return f'sum(avg by (gradbus_phase) (rate(gradbus_run_time_seconds_total{{{OF_RUN}, gradbus_phase=~"{phases}"}}{_WINDOW})))'


_TRAINER = _share("train|publish")
_WORKERS = f'count(gradbus_run_time_seconds_total{{{OF_RUN}, gradbus_phase="generate"}})'
_BUSY = {"min": 0, "max": 1}


def _named(phase: str, words: str, colour: str) -> dict[str, object]:
    return {
        "matcher": {"id": "byName", "options": phase},
        "properties": [{"id": "displayName", "value": words}, {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
    }


_LIMITS = [
    _named("generate", "Rollout-bound: the rollout workers are the busiest. Add workers.", "orange"),
    _named("train", "Train-bound: the trainer is the busiest. Add ranks, or remove rollout workers.", "blue"),
    _named("publish", "Publish-bound: publishing versions is too slow. See the dashboard Weights.", "purple"),
    _named("score", "Reward-bound: the scorer is the busiest. Add reward services, or make it faster.", "red"),
    _named("reference", "Reference-bound: the reference model is the busiest. Add replicas.", "yellow"),
]

TIME = Board(
    uid="gradbus-time",
    title="Gradbus / Where the time goes",
    description="Why is a step slow, and what would make it faster?",
    variables=[ONE_RUN],
    annotations=[STARTS],
    rows=[
        Row(
            "Bottleneck",
            [
                Panel(
                    "What limits the run",
                    "The phase with the least idle time at the end of the time range. Generation, scoring and training run in parallel,"
                    " so the busiest one sets the pace.",
                    [Query(f"topk(1, {_PHASES} > 0)", "{{gradbus_phase}}", now=True)],
                    kind="stat",
                    unit="percentunit",
                    width=12,
                    height=5,
                    options={"textMode": "value_and_name", "graphMode": "none", "colorMode": "background", "justifyMode": "center"},
                    defaults={"noValue": "no activity: choose a time range in which the run was active"},
                    overrides=_LIMITS,
                ),
                Panel(
                    "Rollout workers",
                    "Workers that serve this run at the end of the time range.",
                    [Query(_WORKERS, "workers", now=True)],
                    kind="stat",
                    unit="none",
                    width=3,
                    height=5,
                    options={"graphMode": "none", "colorMode": "none"},
                ),
                Panel(
                    "Balanced number of workers",
                    "Number of rollout workers that would be as busy as the trainer: workers x their busy fraction / the trainer's. If"
                    " it is above the present number, the trainer waits for groups; if below, workers idle.",
                    [Query(f"{_WORKERS} * {_share('generate')} / ({_TRAINER} > 0)", "workers")],
                    kind="stat",
                    unit="none",
                    width=5,
                    height=5,
                    defaults={"decimals": 1},
                    options={"graphMode": "none", "colorMode": "none"},
                ),
                Panel(
                    "Time since the last step",
                    "0 while no step is due. After 10 s the run's status names the blocking groups and services; after 5 minutes an alert"
                    " fires.",
                    [Query(f"max(gradbus_run_time_since_step_seconds{{{OF_RUN}}})", "since the last step", now=True)],
                    kind="stat",
                    unit="s",
                    width=4,
                    height=5,
                    defaults={
                        "color": {"mode": "thresholds"},
                        "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 300}]},
                    },
                ),
            ],
        ),
        Row(
            "Fractions of wall-clock time",
            [
                Panel(
                    "Trainer",
                    "wait: not enough groups in the log. publish: the previous version was not published yet. Checkpoints take the rest."
                    " Much waiting means that the run is not train-bound.",
                    [
                        Query(
                            "avg by (gradbus_phase)"
                            f' (rate(gradbus_run_time_seconds_total{{{OF_RUN}, gradbus_phase=~"wait|train|publish"}}{_WINDOW}))',
                            "{{gradbus_phase}}",
                        )
                    ],
                    unit="percentunit",
                    width=12,
                    defaults=_BUSY,
                    custom={"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40, "lineWidth": 0},
                ),
                Panel(
                    "Generation, scoring and reference",
                    "Fraction of time in which workers sampled (mean over workers), and in which at least one call ran in the reward or the"
                    " reference service. The phases overlap, so their sum has no meaning.",
                    [
                        Query(
                            "avg by (gradbus_phase)"
                            f' (rate(gradbus_run_time_seconds_total{{{OF_RUN}, gradbus_phase=~"generate|score|reference"}}{_WINDOW}))',
                            "{{gradbus_phase}}",
                        )
                    ],
                    unit="percentunit",
                    width=12,
                    defaults=_BUSY,
                ),
                Panel(
                    "Idle fraction by role",
                    "Unused capacity. The busiest role has the least; the others can be scaled down.",
                    [
                        Query(f"clamp_min(1 - {_share('generate')}, 0)", "rollout"),
                        Query(_share("wait"), "trainer"),
                        Query(f"clamp_min(1 - {_share('score')}, 0)", "reward"),
                        Query(f"clamp_min(1 - {_share('reference')}, 0)", "reference"),
                    ],
                    unit="percentunit",
                    width=12,
                    defaults=_BUSY,
                ),
                Panel(
                    "Idle fraction by worker",
                    "A worker that idles while others are busy gets no tasks: see its log.",
                    [
                        Query(
                            f'clamp_min(1 - rate(gradbus_run_time_seconds_total{{{OF_RUN}, gradbus_phase="generate"}}{_WINDOW}), 0)',
                            "{{instance}}",
                        )
                    ],
                    unit="percentunit",
                    width=12,
                    defaults=_BUSY,
                ),
            ],
        ),
        Row(
            "Outstanding groups",
            [
                Panel(
                    "Outstanding groups by stage",
                    "sampling: dispatched, not yet in the buffer. judging: at the scorer or the reference service. admission: scored,"
                    " waiting so that staleness stays bounded. log: read by the trainer for later steps. The tallest stage precedes the"
                    " bottleneck.",
                    [Query(f"sum by (gradbus_stage) (gradbus_groups_waiting{{{OF_RUN}}})", "{{gradbus_stage}}")],
                    width=12,
                    custom={"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30},
                ),
                Panel(
                    "Staleness",
                    "Versions between sampling and training of each sample. `schedule.max_staleness` bounds it.",
                    [Query(f"sum by (le) (increase(gradbus_samples_staleness_total{{{OF_RUN}}}{_WINDOW}))", "{{le}}", heat=True)],
                    kind="heatmap",
                    width=6,
                ),
                Panel(
                    "Staleness, median and 99 %",
                    "A median near the bound means that generation is far behind, or that dispatch is far ahead.",
                    [
                        Query(
                            f"histogram_quantile({share}, sum by (le) (rate(gradbus_samples_staleness_total{{{OF_RUN}}}{_WINDOW})))",
                            name,
                        )
                        for share, name in ((0.5, "median"), (0.99, "99 %"))
                    ],
                    unit="none",
                    width=6,
                ),
            ],
        ),
        Row(
            "Durations",
            [
                Panel(
                    "Generation of a task",
                    "A task has several groups. Diamonds open the trace of one of them.",
                    quantiles_of("gen_ai_client_operation_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    "Call of a scorer",
                    "One call scores all waiting groups. Diamonds open the trace of one of them.",
                    quantiles_of("gradbus_reward_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    "Generated tokens per second",
                    "All workers together, including evaluation.",
                    [
                        Query(
                            f"sum by (gen_ai_token_type) (rate(gen_ai_client_token_usage_sum{_WINDOW}))",
                            "{{gen_ai_token_type}}",
                        )
                    ],
                ),
            ],
        ),
    ],
)
