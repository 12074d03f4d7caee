"""Weights: do new weights reach the workers, soon and whole?"""

from panels import Board, Panel, Query, Row, spread_of

from boards.variables import OF_RUN, ONE_RUN, ROLLOUT, STARTS

_WINDOW = "[$__rate_interval]"
_OF_WORKERS = f'{OF_RUN}, instance=~"$worker"'
_RED_FROM_1 = {
    "color": {"mode": "thresholds"},
    "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1}]},
}
_TROUBLES = (
    (
        "digest_differs",
        "Attestations that failed",
        "A worker held other bytes than the manifest's; it loaded again. Repeated: its memory, disk or link is bad. Take it out.",
    ),
    (
        "unchanged",
        "Versions that changed nothing",
        "The published weights of a step are those before: raise `trainer.learning_rate`, or publish in a wider `weights.dtype`.",
    ),
    ("behind", "Workers left behind", "A worker stays at an old version: see its log, or stop it so that others take its work."),
)


def _trouble(kind: str, title: str, description: str) -> Panel:
    return Panel(
        title,
        description,
        [Query(f'sum(increase(gradbus_weights_troubles_total{{gradbus_weights_trouble="{kind}"}}[$__range]))', title)],
        kind="stat",
        unit="none",
        width=6,
        height=4,
        defaults={"decimals": 0, **_RED_FROM_1},
    )


WEIGHTS = Board(
    uid="gradbus-weights",
    title="Gradbus / Weights",
    description="Do new weights reach the workers, soon and whole?",
    variables=[ONE_RUN, ROLLOUT],
    annotations=[STARTS],
    rows=[
        Row(
            "Alarms in this time",
            [
                *(_trouble(*one) for one in _TROUBLES),
                Panel(
                    "Shards another way had to bring",
                    "A broadcast or a delta failed and object storage stepped in: nothing is lost but time.",
                    [Query("sum(increase(gradbus_weights_fallbacks_total[$__range]))", "shards")],
                    kind="stat",
                    unit="none",
                    width=6,
                    height=4,
                    defaults={"decimals": 0},
                ),
            ],
        ),
        Row(
            "Versions",
            [
                Panel(
                    "Version by worker",
                    "What each engine holds, and the newest that the trainer has published. Lines climb together; one that stays flat is"
                    " stuck.",
                    [Query(f"gradbus_weights_version{{{_OF_WORKERS}}}", "{{instance}}")],
                    unit="none",
                    width=12,
                    custom={"lineInterpolation": "stepAfter", "fillOpacity": 0},
                ),
                Panel(
                    "Behind the trainer",
                    "Versions. Up to `schedule.max_staleness` is as asked for.",
                    [
                        Query(
                            f'max(gradbus_weights_version{{{OF_RUN}, job=~".*trainer"}}) - on() group_right()'
                            f' gradbus_weights_version{{{_OF_WORKERS}, job=~".*rollout"}}',
                            "{{instance}}",
                        )
                    ],
                    unit="none",
                    width=12,
                    custom={"lineInterpolation": "stepAfter"},
                ),
            ],
        ),
        Row(
            "On the way",
            [
                Panel(
                    "From announcement to active",
                    "Until the engine's own checksum is the manifest's; the wait for a task that wants the version is in it. Diamonds open"
                    " a trace.",
                    spread_of("gradbus_weights_activation_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    "Bytes a second, by way",
                    "store: whole files. delta: what changed. Mostly `store` with `transport = delta`: steps change nearly every byte,"
                    " and deltas gain nothing.",
                    [
                        Query(
                            "sum by (gradbus_weights_transport, gradbus_weights_direction)"
                            f" (rate(gradbus_weights_moved_bytes_total{_WINDOW}))",
                            "{{gradbus_weights_direction}} by {{gradbus_weights_transport}}",
                        )
                    ],
                    unit="Bps",
                ),
                Panel(
                    "Bytes a version",
                    "Published bytes by published versions: what one step costs the network before workers multiply it.",
                    [
                        Query(
                            "sum by (gradbus_weights_transport)"
                            f' (rate(gradbus_weights_moved_bytes_total{{gradbus_weights_direction="published"}}{_WINDOW}))'
                            f" / ignoring(gradbus_weights_transport) group_left() (sum(rate(gradbus_trained_steps_total{_WINDOW})) > 0)",
                            "{{gradbus_weights_transport}}",
                        )
                    ],
                    unit="bytes",
                ),
                Panel(
                    "Broadcasts",
                    "With `weights.transport = broadcast`: versions that reached all, some or none of the workers by NCCL or gloo.",
                    [Query(f"sum by (gradbus_outcome) (rate(gradbus_broadcasts_total{_WINDOW}))", "{{gradbus_outcome}}")],
                    width=12,
                ),
                Panel(
                    "Publishing",
                    "Share of the trainer's time in which it waited for the version before to be out. Above a few percent: a shorter"
                    " transport, a narrower `weights.dtype`, or faster storage.",
                    [
                        Query(
                            f'sum(rate(gradbus_run_time_seconds_total{{{OF_RUN}, gradbus_phase="publish"}}{_WINDOW}))',
                            "publish",
                        )
                    ],
                    unit="percentunit",
                    width=12,
                    defaults={"min": 0},
                ),
            ],
        ),
    ],
)
