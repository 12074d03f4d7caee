"""Weights: do new weights reach the workers quickly and intact?"""

from panels import Board, Panel, Query, Row, quantiles_of

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
        "Failed attestations",
        "A worker's weights differed from the manifest, so it loaded them again. If this repeats, remove the machine: it is faulty.",
    ),
    (
        "unchanged",
        "Versions without a change",
        "A step published the same weights as before: raise `trainer.learning_rate`, or set `trainer.dtype` and `weights.dtype` to fp32.",
    ),
    ("lagging", "Lagging workers", "A worker stays at an old version: see its log, or stop it so that other workers take its tasks."),
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
    description="Do new weights reach the workers quickly and intact?",
    variables=[ONE_RUN, ROLLOUT],
    annotations=[STARTS],
    rows=[
        Row(
            "Problems in the time range",
            [
                *(_trouble(*one) for one in _TROUBLES),
                Panel(
                    "Shards by fallback",
                    "A broadcast or a delta failed and the shard was read from object storage: only time is lost.",
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
                    "Version loaded by each engine, and the newest version that the trainer has published. All lines should rise"
                    " together; a flat line is a stuck worker.",
                    [Query(f"gradbus_weights_version{{{_OF_WORKERS}}}", "{{instance}}")],
                    unit="none",
                    width=12,
                    custom={"lineInterpolation": "stepAfter", "fillOpacity": 0},
                ),
                Panel(
                    "Behind the trainer",
                    "In versions. Up to `schedule.max_staleness` is normal.",
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
            "Transport",
            [
                Panel(
                    "From announcement to active",
                    "Until the engine's own checksum equals the manifest's, including the wait for a task that needs the version."
                    " Diamonds open a trace.",
                    quantiles_of("gradbus_weights_activation_duration_seconds"),
                    unit="s",
                ),
                Panel(
                    "Bytes per second by transport",
                    "store: whole files. delta: changed values. Mostly `store` in a run with `transport = delta` means that steps change"
                    " nearly every byte, so deltas save nothing.",
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
                    "Bytes per version",
                    "Published bytes divided by published versions: the network cost of one step for each worker.",
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
                    "With `weights.transport = broadcast`: versions that NCCL or gloo brought to all, some or none of the workers.",
                    [Query(f"sum by (gradbus_outcome) (rate(gradbus_broadcasts_total{_WINDOW}))", "{{gradbus_outcome}}")],
                    width=12,
                ),
                Panel(
                    "Publishing",
                    "Fraction of the trainer's time spent waiting for the previous version to be published. Above a few percent, use a"
                    " faster transport, a narrower `weights.dtype` or faster storage.",
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
