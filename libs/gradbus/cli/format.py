"""A run's progress in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradbus.resources.runs import RunResource, RunSummary

_SHARES = {
    "generate": "gen",
    "load": "load",
    "score": "score",
    "reference": "reference",
    "wait": "wait",
    "train": "train",
    "switch": "switch",
}
_OF_SAMPLING = ("generate", "load", "score")


def number(value: float | None) -> str:
    """The value with three decimals; a dash for an unknown one."""
    return "-" if value is None else f"{value:.3f}"


def progress_line(run: RunSummary, left: float | None = None) -> str:
    """The figures of a run, after its state unless that is `running`; `left`: seconds until its end."""
    return figures(run, left) if run.state == "running" else f"{run.state}  {figures(run)}"


def duration(seconds: float) -> str:
    """Roughly, in one or two units."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes // (24 * 60)} days"


def run_line(run: RunSummary) -> str:
    """A run in a list: id, local time of submission, name, kind, state, step, scores and tags."""
    created = "-" if run.created_at is None else run.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
    progress = run.progress
    kind = run.kind or "-"
    state = f"{kind:<12}  {run.state:<18}"
    tags = f"  [{' '.join(run.tags)}]" if run.tags else ""
    return f"{run.id}  {created:<16}  {run.name:<24}  {state}  step {progress.step}/{run.steps}  {'  '.join(_scores(run))}{tags}"


def annotation_lines(run: RunResource) -> list[str]:
    """What users wrote on a run: its tags, and its note, whose further lines are indented."""
    tags = [f"tags        {' '.join(run.tags)}"] if run.tags else []
    return [*tags, *(f"{'' if at else 'note':<12}{line}" for at, line in enumerate(run.note.splitlines()))]


def figures(run: RunSummary, left: float | None = None) -> str:
    """Step, time left, version, scores, staleness, a critic's explained variance, tokens per second, time by phase, workers."""
    progress = run.progress
    speed = progress.tokens_per_second
    shares = progress.shares
    given = _trains_given(run)
    shown = {short: shares[name] for name, short in _SHARES.items() if name in shares and not (given and name in _OF_SAMPLING)}
    staleness = "-" if progress.staleness is None else f"{progress.staleness:.1f}"
    explained = progress.explained_variance
    parts = [
        f"step {progress.step}/{run.steps}" + ("" if left is None else f" ({duration(left)} left)"),
        f"v{progress.version if progress.version >= 0 else '-'}",
        *_scores(run),
        "" if given else f"stale {staleness}",
        "" if explained is None else f"explained {explained:.2f}",
        f"{'-' if speed is None else round(speed)} tok/s",
        " ".join(f"{short} {share:.0%}" for short, share in shown.items()),
        f"{progress.workers} {'worker' if progress.workers == 1 else 'workers'}",
    ]
    return "  ".join(part for part in parts if part)


def _trains_given(run: RunSummary) -> bool:
    """Whether the run trains on given responses: nothing is sampled or scored."""
    return run.kind not in {"rl", None}


def _scores(run: RunSummary) -> list[str]:
    """Reward, held-out accuracy and KL to a teacher; of a run on given responses the loss, of pairs the accuracy, and a held-out loss."""
    progress = run.progress
    if not _trains_given(run):
        teacher = progress.teacher_kl
        # Only a teacher judges the samples of a run that has one and no rewards.
        reward = [] if teacher is not None and progress.reward is None else [f"reward {number(progress.reward)}"]
        held_out = [] if teacher is not None and progress.accuracy is None else [f"held-out {number(progress.accuracy)}"]
        return [*([] if teacher is None else [f"teacher KL {number(teacher)}"]), *reward, *held_out]
    others = {"accuracy": progress.pair_accuracy, "held-out loss": progress.held_out_loss}
    return [f"loss {number(progress.loss)}", *(f"{name} {number(value)}" for name, value in others.items() if value is not None)]
