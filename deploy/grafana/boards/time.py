"""Where the time goes: why is a step slow?"""

from panels import Board, Panel, Query, Row, spread_of

from boards.variables import OF_RUN, ONE_RUN, STARTS

_WINDOW = "[$__rate_interval]"
_PHASES = f'avg by (gradbus_phase) (rate(gradbus_run_time_seconds_total{{{OF_RUN}, gradbus_phase!="wait"}}{_WINDOW}))'


def _share(phases: str) -> str:
    """Share of the wall, a number without labels."""
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
    _named("generate", "Rollout-bound: the workers are the busiest. Add rollout workers.", "orange"),
    _named("train", "Train-bound: the trainer is the busiest. Give it more ranks, or take workers away.", "blue"),
    _named("publish", "Publish-bound: versions leave too slowly. See the dashboard Weights.", "purple"),
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
            "In words",
            [
                Panel(
                    "What limits the run",
                    "Whatever has the least idle time, at the end of the time shown. Generation, scoring and training go on side by side,"
                    " so the busiest sets the pace.",
                    [Query(f"topk(1, {_PHASES} > 0)", "{{gradbus_phase}}", now=True)],
                    kind="stat",
                    unit="percentunit",
                    width=12,
                    height=5,
                    options={"textMode": "value_and_name", "graphMode": "none", "colorMode": "background", "justifyMode": "center"},
                    defaults={"noValue": "nothing goes on then: choose a time in which the run worked"},
                    overrides=_LIMITS,
                ),
                Panel(
                    "Rollout workers now",
                    "That serve this run.",
                    [Query(_WORKERS, "workers", now=True)],
                    kind="stat",
                    unit="none",
                    width=3,
                    height=5,
                    options={"graphMode": "none", "colorMode": "none"},
                ),
                Panel(
                    "The split that would balance it",
                    "Rollout workers that would be as busy as the trainer is: workers x their busy share / the trainer's. More than now:"
                    " the trainer starves. Fewer: workers idle.",
                    [Query(f"{_WORKERS} * {_share('generate')} / ({_TRAINER} > 0)", "workers")],
                    kind="stat",
                    unit="none",
                    width=5,
                    height=5,
                    defaults={"decimals": 1},
                    options={"graphMode": "none", "colorMode": "none"},
                ),
                Panel(
                    "Standing still for",
                    "Since the run last made a step. After 10 s the run's status names what it waits for and who owes it; after 5 minutes"
                    " there is an alert.",
                    [Query(f"max(gradbus_run_time_since_step_seconds{{{OF_RUN}}})", "still", now=True)],
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
            "Shares of the wall",
            [
                Panel(
                    "The trainer's time",
                    "wait: no groups were there. publish: the version before was not out yet. These make the whole with what checkpoints"
                    " take. Much waiting: the run is not train-bound.",
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
                    "What goes on beside it",
                    "Share of the wall in which workers sampled (their mean), and in which at least one call was in the reward or the"
                    " reference service. They overlap: the sum means nothing.",
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
                    "Idle share by role",
                    "What is paid for and not used. The busiest role has the least; the others can be made smaller.",
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
                    "Idle share by worker",
                    "One that idles beside busy ones gets no tasks: see its log.",
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
            "On the way",
            [
                Panel(
                    "Groups waiting",
                    "sampling: dispatched, not in the buffer. judging: at the scorer or the reference. admission: judged, held back to"
                    " keep staleness. log: read by the trainer, for later steps. The tallest stage is in front of the slowest.",
                    [Query(f"sum by (gradbus_stage) (gradbus_groups_waiting{{{OF_RUN}}})", "{{gradbus_stage}}")],
                    width=12,
                    custom={"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30},
                ),
                Panel(
                    "Staleness",
                    "Versions between the one that sampled and the one trained, by sample. `schedule.max_staleness` bounds it.",
                    [Query(f"sum by (le) (increase(gradbus_samples_staleness_total{{{OF_RUN}}}{_WINDOW}))", "{{le}}", heat=True)],
                    kind="heatmap",
                    width=6,
                ),
                Panel(
                    "Staleness, median and most",
                    "A median near the bound: generation is far behind, or dispatch far ahead.",
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
            "How long each part takes",
            [
                Panel(
                    "A task's generation",
                    "A task is several groups. Diamonds open the trace of one.",
                    spread_of("gen_ai_client_operation_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    "A scorer's call",
                    "Every group that waits goes into one call. Diamonds open the trace of one.",
                    spread_of("gradbus_reward_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    "Tokens generated a second",
                    "All workers together, evaluation too.",
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
