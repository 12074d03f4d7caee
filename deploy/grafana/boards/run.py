"""Run: is it learning?"""

from panels import Board, Panel, Query, Row, quantiles_of

from boards.variables import OF_RUN, ONE_RUN, STARTS

_SHARE = {"min": 0, "max": 1}


def _each(metric: str, legend: str) -> Query:
    return Query(f"max by ({legend}) ({metric}{{{OF_RUN}}})", "{{" + legend + "}}")


def _one(metric: str, legend: str) -> Query:
    return Query(f"max({metric}{{{OF_RUN}}})", legend)


def _band(mean: str, std: str) -> list[Query]:
    middle, deviation = (f'max({name}{{{OF_RUN}, gradbus_reward_part="reward"}})' for name in (mean, std))
    return [Query(middle, "mean"), Query(f"{middle} + {deviation}", "+ 1 deviation"), Query(f"{middle} - {deviation}", "- 1 deviation")]


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
    description="Is this run learning, and are its training data sound?",
    variables=[ONE_RUN],
    annotations=[STARTS],
    rows=[
        Row(
            "Status",
            [
                Panel(
                    "State",
                    "State of the run at the end of the time range. `waiting_for_reward`: see the dashboard Rewards. `queued`: no"
                    " trainer is free.",
                    [Query(f"max by (gradbus_state) (gradbus_run_state{{{OF_RUN}}}) > 0", "{{gradbus_state}}", now=True)],
                    kind="stat",
                    width=4,
                    height=4,
                    options={"textMode": "name", "graphMode": "none", "colorMode": "none"},
                    defaults={"noValue": "ended, or without a conductor"},
                ),
                Panel(
                    "Progress",
                    "Published steps as a fraction of those in the spec.",
                    [Query(f"max(gradbus_run_step{{{OF_RUN}}}) / max(gradbus_run_steps{{{OF_RUN}}})", "done")],
                    kind="stat",
                    unit="percentunit",
                    width=4,
                    height=4,
                    defaults=_SHARE,
                ),
                Panel(
                    "Steps per minute",
                    "0 while the run makes no progress; the dashboard Where the time goes shows why.",
                    [Query(f"60 * sum(rate(gradbus_trained_steps_total{{{OF_RUN}}}[$__rate_interval]))", "steps per minute")],
                    kind="stat",
                    unit="none",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Trained tokens per second",
                    "Trainable response tokens: the throughput of the trainer, all ranks together.",
                    [Query(f"sum(rate(gradbus_trained_tokens_total{{{OF_RUN}}}[$__rate_interval]))", "tokens per second")],
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Current reward",
                    "Mean reward of the newest step.",
                    [Query(f'max(gradbus_reward_mean{{{OF_RUN}, gradbus_reward_part="reward"}})', "reward")],
                    kind="stat",
                    unit="none",
                    width=4,
                    height=4,
                    defaults={"decimals": 3},
                ),
                Panel(
                    "Evaluation",
                    "Newest result on held-out rows, in the spec's `evaluation.metric`. Empty without `data.eval`.",
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
            "Alarms",
            [
                Panel(
                    "Alarms of learning",
                    "1 while an alarm lasts. The run's history has the value that was seen and the setting to change, docs/operations.md"
                    " all kinds. A trainer that was restarted begins anew at 0.",
                    [_each("gradbus_alarms", "gradbus_alarm")],
                    unit="none",
                    width=24,
                    height=5,
                    custom={"lineInterpolation": "stepAfter"},
                    defaults={"min": 0, "max": 1, "decimals": 0},
                ),
            ],
        ),
        Row(
            "Reward",
            [
                Panel(
                    "Reward",
                    "Mean of each step, with one standard deviation over its samples. Without deviation there is no learning signal, and"
                    " groups are filtered.",
                    _band("gradbus_reward_mean", "gradbus_reward_std"),
                    unit="none",
                    width=12,
                    overrides=_BAND,
                ),
                Panel(
                    "Reward by component",
                    "Mean of each component that the scorer returns. One component that rises while another falls is a sign of reward"
                    " hacking: read samples of that step.",
                    [_each("gradbus_reward_mean", "gradbus_reward_part")],
                    unit="none",
                    width=6,
                ),
                Panel(
                    "Evaluation",
                    "Held-out rows. If it stays flat while the reward rises, the policy exploits the grader instead of learning the task.",
                    [_one("gradbus_evaluation_score", "evaluation")],
                    unit="none",
                    width=6,
                    custom={"showPoints": "always", "lineInterpolation": "stepAfter"},
                ),
                Panel(
                    "Standard deviation by component",
                    "Standard deviation of each reward component over the step's samples.",
                    [_each("gradbus_reward_std", "gradbus_reward_part")],
                    unit="none",
                    width=12,
                ),
                Panel(
                    "Smallest and largest reward",
                    "Of the step's samples. If both meet, all samples are alike; a largest one far away from the rest is a sample to read.",
                    [_each("gradbus_reward_range", "gradbus_statistic")],
                    unit="none",
                    width=6,
                ),
                Panel(
                    "Samples without a score",
                    "Per second. They are left out of the mean and of the gradient. The run's history gives the reasons.",
                    [Query(f"sum(rate(gradbus_samples_masked_total{{{OF_RUN}}}[$__rate_interval]))", "masked")],
                    width=6,
                ),
            ],
        ),
        Row(
            "Policy",
            [
                Panel(
                    "KL to the base model",
                    "Nats per token. After a sudden rise, lower `trainer.learning_rate` or raise `algorithm.kl`. 0 without a KL term.",
                    [_one("gradbus_policy_kl", "KL")],
                    unit="none",
                ),
                Panel(
                    "Entropy",
                    "Nats per token. Near 0 all samples of a prompt are the same and groups are filtered: raise the temperature or the"
                    " upper clip range.",
                    [_one("gradbus_policy_entropy", "entropy")],
                    unit="none",
                ),
                Panel(
                    "Gradient norm",
                    "Before clipping. Spikes come from few, long or wrong samples: read the samples of that step.",
                    [_one("gradbus_policy_grad_norm", "norm")],
                    unit="none",
                ),
                Panel(
                    "Clip fraction",
                    "Fraction of tokens whose ratio is below (low) or above (high) the clip range. Above a few percent the steps are too"
                    " large for the staleness of the samples.",
                    [_each("gradbus_policy_clip_fraction", "gradbus_side")],
                    unit="percentunit",
                    defaults={"min": 0},
                ),
                Panel(
                    "Importance ratio",
                    "Ratio between the trained policy and the sampling policy; 1 on-policy. A mean away from 1 means stale samples; a huge"
                    " maximum means that trainer and engine disagree on a token.",
                    [_each("gradbus_policy_ratio", "gradbus_statistic")],
                    unit="none",
                ),
                Panel(
                    "KL to the teacher",
                    "Reverse KL of the policy to its teacher, in nats per token: the mean of log mu - log pi_teacher over sampled tokens."
                    " It should fall towards 0; single steps may be below. Empty without a teacher.",
                    [_one("gradbus_policy_teacher_kl", "KL")],
                    unit="none",
                ),
                Panel(
                    "Log-probability difference of trainer and rollout",
                    "Mean absolute difference in nats. A small constant is rounding, growth with staleness is normal. A large value at"
                    " staleness 0 means that the engine computes a different function: check dtype and version.",
                    [_one("gradbus_policy_logprob_difference", "difference")],
                    unit="none",
                ),
                Panel(
                    "Loss",
                    "The loss says little about progress in GRPO; watch the reward. In a run on given responses it should fall, and that"
                    " of held-out rows with it: if that one rises, the run learns its rows by heart.",
                    [_one("gradbus_policy_loss", "loss"), _one("gradbus_evaluation_loss", "held-out")],
                    unit="none",
                ),
                Panel(
                    "Learning rate",
                    "Learning rate of the schedule.",
                    [_one("gradbus_policy_learning_rate", "rate")],
                    unit="sci",
                ),
            ],
        ),
        Row(
            "Axes that few runs use",
            [
                Panel(
                    "Largest KL of a token",
                    "By k3, in nats, to the base model or the reference that moves. A jump while the mean stays is one token that became"
                    " unlikely: read the samples of that step. Empty without `algorithm.kl`.",
                    [_one("gradbus_policy_kl_max", "largest")],
                    unit="none",
                ),
                Panel(
                    "Coefficients of KL and entropy",
                    "As their controllers set them. At its bound, a coefficient does not reach its target: change the target. Empty without"
                    " `algorithm.kl_control` and `algorithm.entropy_control`.",
                    [_each("gradbus_policy_coefficient", "gradbus_term")],
                    unit="none",
                ),
                Panel(
                    "KL of a step",
                    "From the policy before the step to the one that its last update began with, nats per token. Above `stop_kl` the rest"
                    " of the step's updates is left out. Empty without `trainer.inner.stop_kl`.",
                    [_one("gradbus_policy_step_kl", "KL")],
                    unit="none",
                ),
                Panel(
                    "Distance of the policies",
                    "Total variation between the policy that sampled and the trained one, at most 1. It grows with staleness: above 0.1"
                    " lower `schedule.max_staleness`. Empty without `algorithm.centering`.",
                    [_one("gradbus_policy_total_variation", "distance")],
                    unit="none",
                    defaults={"min": 0},
                ),
                Panel(
                    "Outliers, and tokens of high covariance",
                    "Share of tokens that do not move the policy. Outliers keep the second moment of the log-ratios below its bound: above"
                    " a few percent the samples are too old. The clip of covariances leaves out its `share`, and none if no token is within"
                    " its bounds. Empty without `algorithm.second_moment` and `algorithm.covariance_clip`.",
                    [_one("gradbus_policy_outliers", "outliers"), _one("gradbus_policy_covariance_clipped", "high covariance")],
                    unit="percentunit",
                    defaults={"min": 0},
                ),
                Panel(
                    "Drift, and likelihood of the best samples",
                    "Mean square of the log-ratio, and negative log-likelihood of the groups' best samples in nats per token, which should"
                    " fall. Empty without `algorithm.drift` and `algorithm.nll`.",
                    [_one("gradbus_policy_drift", "drift"), _one("gradbus_policy_nll", "best samples")],
                    unit="none",
                ),
            ],
        ),
        Row(
            "Critic",
            [
                Panel(
                    "Explained variance",
                    "Share of the returns' variance that the critic's values explain. It should rise towards 1. Near 0 the critic knows"
                    " nothing: raise `trainer.critic.learning_rate` or `updates`. Far below 0: lower them. Empty without a critic.",
                    [_one("gradbus_critic_explained_variance", "explained variance")],
                    unit="none",
                    defaults={"max": 1},
                ),
                Panel(
                    "Value loss",
                    "Half the mean square of value minus target, before the critic's updates. It grows with the rewards' scale; the"
                    " explained variance does not. Empty without a critic.",
                    [_one("gradbus_critic_loss", "loss")],
                    unit="none",
                ),
                Panel(
                    "Critic's gradient norm",
                    "Of the step's first update, before clipping at `trainer.max_grad_norm`. If it grows without end, lower"
                    " `trainer.critic.learning_rate`. Empty without a critic.",
                    [_one("gradbus_critic_grad_norm", "norm")],
                    unit="none",
                ),
            ],
        ),
        Row(
            "Pairs and labelled responses",
            [
                Panel(
                    "Accuracy of pairs",
                    "Share of the step's pairs whose chosen response has the higher reward. 0.5 is a guess. If it stays at 1 while the loss"
                    " falls on, the run learns the rows by heart: take fewer epochs. Empty for a run without pairs.",
                    [_one("gradbus_preference_accuracy", "accuracy")],
                    unit="percentunit",
                    defaults=_SHARE,
                ),
                Panel(
                    "Margin",
                    "Reward of chosen or desirable responses minus that of rejected or undesirable ones. It should rise from 0. Empty for"
                    " other runs.",
                    [_one("gradbus_preference_margin", "margin")],
                    unit="none",
                ),
                Panel(
                    "Responses by label",
                    "Log-probability of chosen and rejected responses in nats, or their scores by a reward model; of desirable and"
                    " undesirable ones the log-ratio to the base model. If both fall together, the policy moves away from both: lower"
                    " `trainer.learning_rate` or raise `preference.beta`. Empty for other runs.",
                    [_each("gradbus_preference_response", "gradbus_label")],
                    unit="none",
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
                    "Fraction truncated at `rollout.max_new_tokens`, or of episodes that ran out of tokens. If it is high, raise the"
                    " limit, or check whether the reward favours endless responses.",
                    [_one("gradbus_response_truncated", "truncated")],
                    unit="percentunit",
                    defaults=_SHARE,
                ),
                Panel(
                    "Length distribution",
                    "Trained samples by response length.",
                    [Query(f"sum by (le) (increase(gradbus_samples_length_total{{{OF_RUN}}}[$__rate_interval]))", "{{le}}", heat=True)],
                    kind="heatmap",
                ),
                Panel(
                    "Groups by verdict",
                    "Per second. `filtered`: all samples had the same reward. `dropped`: the group missed its deadline. Many filtered"
                    " groups mean that rows are too easy or too hard. Many dropped: raise `schedule.group_deadline_seconds`.",
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
                    "Mean response length of trained, filtered and dropped groups. If dropped groups are longer than trained groups, the"
                    " run favours short responses.",
                    [_LENGTHS],
                    width=12,
                ),
            ],
        ),
        Row(
            "Steps",
            [
                Panel(
                    "Compute time of a step",
                    "Median and slowest tenth over all trainers. Each diamond is one step and opens its trace, which links to the groups"
                    " that it trained.",
                    quantiles_of("gradbus_step_duration_seconds", 0.9, "slowest tenth"),
                    unit="s",
                    width=24,
                )
            ],
        ),
    ],
)
