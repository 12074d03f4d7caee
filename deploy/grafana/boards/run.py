"""Run: is it learning?"""

from panels import Board, Panel, Query, Row, spread_of

from boards.variables import OF_RUN, ONE_RUN, STARTS

_SHARE = {"min": 0, "max": 1}


def _each(metric: str, legend: str) -> Query:
    return Query(f"max by ({legend}) ({metric}{{{OF_RUN}}})", "{{" + legend + "}}")


def _one(metric: str, legend: str) -> Query:
    return Query(f"max({metric}{{{OF_RUN}}})", legend)


def _band(mean: str, deviation: str) -> list[Query]:
    middle, spread = (f'max({name}{{{OF_RUN}, gradbus_reward_part="reward"}})' for name in (mean, deviation))
    return [Query(middle, "mean"), Query(f"{middle} + {spread}", "+ 1 deviation"), Query(f"{middle} - {spread}", "- 1 deviation")]


_BAND = [
    {
        "matcher": {"id": "byName", "options": "+ 1 deviation"},
        "properties": [
            {"id": "custom.lineWidth", "value": 0},
            {"id": "custom.fillBelowTo", "value": "- 1 deviation"},
            {"id": "custom.fillOpacity", "value": 15},
        ],
    },
    {"matcher": {"id": "byName", "options": "- 1 deviation"}, "properties": [{"id": "custom.lineWidth", "value": 0}]},
]

_LENGTHS = Query(
    f"sum by (gradbus_verdict) (rate(gradbus_groups_tokens_total{{{OF_RUN}}}[$__rate_interval]))"
    f" / (sum by (gradbus_verdict) (rate(gradbus_groups_samples_total{{{OF_RUN}}}[$__rate_interval])) > 0)",
    "{{gradbus_verdict}}",
)

RUN = Board(
    uid="gradbus-run",
    title="Gradbus / Run",
    description="Is this run learning, and is what it learns from sound?",
    variables=[ONE_RUN],
    annotations=[STARTS],
    rows=[
        Row(
            "Where it stands",
            [
                Panel(
                    "State",
                    "What the run is doing at the end of the time shown. `waiting_for_reward`: see the dashboard Rewards. `queued`: no"
                    " trainer is free.",
                    [Query(f"max by (gradbus_state) (gradbus_run_state{{{OF_RUN}}}) > 0", "{{gradbus_state}}", now=True)],
                    kind="stat",
                    width=4,
                    height=4,
                    options={"textMode": "name", "graphMode": "none", "colorMode": "none"},
                    defaults={"noValue": "over, or no conductor has it"},
                ),
                Panel(
                    "Progress",
                    "Steps published of those the spec asks for.",
                    [Query(f"max(gradbus_run_step{{{OF_RUN}}}) / max(gradbus_run_steps{{{OF_RUN}}})", "done")],
                    kind="stat",
                    unit="percentunit",
                    width=4,
                    height=4,
                    defaults=_SHARE,
                ),
                Panel(
                    "Steps a minute",
                    "Falls to 0 when the run stands still: the dashboard Where the time goes says what it waits for.",
                    [Query(f"60 * sum(rate(gradbus_trained_steps_total{{{OF_RUN}}}[$__rate_interval]))", "steps a minute")],
                    kind="stat",
                    unit="none",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Tokens trained a second",
                    "Trainable response tokens. The trainer's throughput, all ranks together.",
                    [Query(f"sum(rate(gradbus_trained_tokens_total{{{OF_RUN}}}[$__rate_interval]))", "tokens a second")],
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Reward now",
                    "Mean of the newest step.",
                    [Query(f'max(gradbus_reward_mean{{{OF_RUN}, gradbus_reward_part="reward"}})', "reward")],
                    kind="stat",
                    unit="none",
                    width=4,
                    height=4,
                    defaults={"decimals": 3},
                ),
                Panel(
                    "Evaluation",
                    "The newest result on held-out rows, in the spec's `evaluation.metric`. Empty without `data.eval`.",
                    [_one("gradbus_evaluation_score", "evaluation")],
                    kind="stat",
                    unit="none",
                    width=4,
                    height=4,
                    defaults={"decimals": 3},
                ),
            ],
        ),
        Row(
            "Reward",
            [
                Panel(
                    "Reward",
                    "Mean of each step, and one standard deviation over its samples. A spread that goes to 0 leaves nothing to learn:"
                    " groups get filtered.",
                    _band("gradbus_reward_mean", "gradbus_reward_std"),
                    unit="none",
                    width=12,
                    overrides=_BAND,
                ),
                Panel(
                    "Reward by part",
                    "Each component the scorer names, mean of the step. One part that rises while another falls is how reward hacking"
                    " begins: read samples of that step.",
                    [_each("gradbus_reward_mean", "gradbus_reward_part")],
                    unit="none",
                    width=6,
                ),
                Panel(
                    "Evaluation",
                    "Held-out rows. It stays flat while the reward rises: the policy learns the grader, not the task.",
                    [_one("gradbus_evaluation_score", "evaluation")],
                    unit="none",
                    width=6,
                    custom={"showPoints": "always", "lineInterpolation": "stepAfter"},
                ),
                Panel(
                    "Spread by part",
                    "Standard deviation over the step's samples.",
                    [_each("gradbus_reward_std", "gradbus_reward_part")],
                    unit="none",
                    width=12,
                ),
                Panel(
                    "Samples that could not be judged",
                    "A second; they are left out of mean and gradient. Reasons are in the run's history.",
                    [Query(f"sum(rate(gradbus_samples_masked_total{{{OF_RUN}}}[$__rate_interval]))", "masked")],
                    width=12,
                ),
            ],
        ),
        Row(
            "Policy",
            [
                Panel(
                    "KL to the base model",
                    "k3 estimate, nats a token. A sudden rise: lower `trainer.learning_rate` or raise `algorithm.kl`. 0 without a KL term.",
                    [_one("gradbus_policy_kl", "KL")],
                    unit="none",
                ),
                Panel(
                    "Entropy",
                    "Nats a token. Near 0 all samples of a prompt are the same and groups get filtered: raise the temperature or the"
                    " upper clip.",
                    [_one("gradbus_policy_entropy", "entropy")],
                    unit="none",
                ),
                Panel(
                    "Gradient norm",
                    "Before clipping. Spikes come from few, long or wrong samples: look at the step's.",
                    [_one("gradbus_policy_grad_norm", "norm")],
                    unit="none",
                ),
                Panel(
                    "Tokens clipped",
                    "Share of tokens outside the clip range, below (low) and above (high). Above a few percent the steps are too large"
                    " for how stale the samples are.",
                    [_each("gradbus_policy_clip_fraction", "gradbus_side")],
                    unit="percentunit",
                    defaults={"min": 0},
                ),
                Panel(
                    "Importance ratio",
                    "Trained policy to the one that sampled; 1 on-policy. A mean away from 1 means stale samples, a huge maximum a token"
                    " that trainer and engine disagree on.",
                    [_each("gradbus_policy_ratio", "gradbus_statistic")],
                    unit="none",
                ),
                Panel(
                    "Trainer against rollout",
                    "Mean difference of log-probability, nats. Constant and small is rounding; growing with staleness is normal; large at"
                    " staleness 0 means that the engine computes something else: check dtype and version.",
                    [_one("gradbus_policy_logprob_difference", "difference")],
                    unit="none",
                ),
                Panel(
                    "Loss",
                    "Of little meaning in GRPO: watch the reward.",
                    [_one("gradbus_policy_loss", "loss")],
                    unit="none",
                    width=12,
                    height=6,
                ),
                Panel(
                    "Learning rate",
                    "As the schedule gives it.",
                    [_one("gradbus_policy_learning_rate", "rate")],
                    unit="sci",
                    width=12,
                    height=6,
                ),
            ],
        ),
        Row(
            "Responses",
            [
                Panel(
                    "Response length",
                    "Tokens of the step's responses.",
                    [_each("gradbus_response_length", "gradbus_statistic")],
                ),
                Panel(
                    "Truncated",
                    "Share cut at `rollout.max_new_tokens`. High: raise it, or the policy is paid for never ending.",
                    [_one("gradbus_response_truncated", "truncated")],
                    unit="percentunit",
                    defaults=_SHARE,
                ),
                Panel(
                    "Lengths",
                    "How many samples of each length were trained.",
                    [Query(f"sum by (le) (increase(gradbus_samples_length_total{{{OF_RUN}}}[$__rate_interval]))", "{{le}}", heat=True)],
                    kind="heatmap",
                ),
                Panel(
                    "Groups by verdict",
                    "A second. `filtered`: all samples had the same reward. `dropped`: it missed its deadline. Many filtered: rows are"
                    " too easy or too hard. Many dropped: raise `schedule.group_deadline_seconds`.",
                    [
                        Query(
                            f"sum by (gradbus_verdict) (rate(gradbus_groups_total{{{OF_RUN}}}[$__rate_interval]))",
                            "{{gradbus_verdict}}",
                        )
                    ],
                    width=12,
                    custom={"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30},
                ),
                Panel(
                    "Length by verdict",
                    "Mean response tokens of trained, filtered and dropped groups. Dropped ones that are longer than trained ones mean"
                    " that the run favours short answers.",
                    [_LENGTHS],
                    width=12,
                ),
            ],
        ),
        Row(
            "Steps",
            [
                Panel(
                    "Time a step computes",
                    "Median and slowest tenth over all trainers. Each diamond is one step: it opens that step's trace, from which links"
                    " lead to the groups it trained.",
                    spread_of("gradbus_step_duration_seconds", 0.9, "slowest tenth"),
                    unit="s",
                    width=24,
                )
            ],
        ),
    ],
)
