"""Environments: does the other side answer, how fast, and who writes the tokens of episodes?"""

from panels import Board, Panel, Query, Row

from boards.variables import ONE_RUN, STARTS

_WINDOW = "[$__rate_interval]"
_STACKED = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30}


def _rate(metric: str, label: str, selector: str = "") -> Query:
    return Query(f"sum by ({label}) (rate({metric}{selector}{_WINDOW}))", f"{{{{{label}}}}}")


def _now(title: str, description: str, expr: str, name: str) -> Panel:
    return Panel(title, description, [Query(expr, name)], kind="stat", unit="none", width=6, height=5, options={"graphMode": "none"})


ENVIRONMENTS = Board(
    uid="gradbus-environments",
    title="Gradbus / Environments",
    description="Do environments and agents answer, how fast, and who writes the tokens? A failure never counts as a reward of 0.",
    variables=[ONE_RUN],
    annotations=[STARTS],
    rows=[
        Row(
            "Now",
            [
                _now(
                    "Runs waiting for their environment",
                    "Runs in the state `waiting_for_environment`. The run's status says who does not answer.",
                    'sum(gradbus_run_state{gradbus_state="waiting_for_environment"}) or vector(0)',
                    "runs",
                ),
                _now("Sessions", "Episodes that environments play now.", "sum(gradbus_environment_sessions)", "sessions"),
                _now("Processes", "Confined processes of users' Python.", "sum(gradbus_environment_children)", "processes"),
                _now("Episodes of agents", "Offered to agents, or played by them.", "sum(gradbus_agent_episodes)", "episodes"),
            ],
        ),
        Row(
            "Environments",
            [
                Panel(
                    "Calls by answer",
                    "ok; invalid: the item cannot be judged, and the sample is masked; error: the environment failed, and the episode is"
                    " tried again; unknown_session: the service was started again.",
                    [_rate("gradbus_environment_calls_total", "gradbus_environment_status")],
                    custom=_STACKED,
                    width=12,
                ),
                Panel(
                    "Duration of an environment's call",
                    "A turn waits for so long, while the engine's place is free. Near `environment.step_seconds` calls begin to fail.",
                    [
                        Query(
                            f"histogram_quantile({share}, sum by (le, gradbus_environment_call)"
                            f" (rate(gradbus_environment_duration_seconds_bucket{_WINDOW})))",
                            "{{gradbus_environment_call}} " + name,
                        )
                        for share, name in ((0.5, "median"), (0.95, "95 %"))
                    ],
                    unit="s",
                    width=12,
                ),
            ],
        ),
        Row(
            "Episodes",
            [
                Panel(
                    "Turns and forks per second",
                    "Turns that the policy drew, and sequences beyond the first one of an episode.",
                    [
                        Query(f"sum(rate(gradbus_episode_turns_total{_WINDOW}))", "turns"),
                        Query(f"sum(rate(gradbus_episode_forks_total{_WINDOW}))", "forks"),
                    ],
                    width=12,
                ),
                Panel(
                    "Tokens by author",
                    "Tokens after prompts, per second. Only the policy's are trained; each turn computes all that are before it again.",
                    [_rate("gradbus_episode_tokens_total", "gradbus_author")],
                    custom=_STACKED,
                    width=12,
                ),
                Panel(
                    "Episodes played again",
                    "One of a hundred of a seeded environment. differs: it is not deterministic, and its samples are masked.",
                    [_rate("gradbus_environment_repeats_total", "gradbus_environment_result")],
                    width=12,
                ),
                Panel(
                    "Entries of journals",
                    "written: a turn or an answer, before anybody is told; read: by the worker that goes on where another one died.",
                    [_rate("gradbus_journal_entries_total", "gradbus_journal_use")],
                    width=12,
                ),
            ],
        ),
        Row(
            "Agents",
            [
                Panel(
                    "Turns by outcome",
                    "extend: the request goes on from a turn; fork: it begins a sequence; replay: a retry, which draws nothing.",
                    [_rate("gradbus_agent_turns_total", "gradbus_agent_outcome")],
                    custom=_STACKED,
                ),
                Panel(
                    "Calls of rollout workers by answer",
                    "away: nobody claims the episode, or its agent works on; error: its agent gave up or did nothing for its lease.",
                    [_rate("gradbus_agent_calls_total", "gradbus_agent_status")],
                    custom=_STACKED,
                ),
                Panel(
                    "Requests refused",
                    "Of agents, by HTTP status: 400 cannot be answered as it is, 401 and 403 wrong key or a limit of the run, 410 over.",
                    [_rate("gradbus_agent_refusals_total", "http_response_status_code")],
                ),
            ],
        ),
    ],
)
