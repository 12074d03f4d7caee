"""Answers of the history route, made without a gateway."""

TIME = "2026-01-02T23:04:05Z"


def table(spans=(), **columns):
    """A table with a bucket for each step or (first, last, count); a column has [last] or [last, min, max, mean] for each."""
    buckets = [(span, span, 1) if isinstance(span, int) else span for span in spans]
    is_exact = all(count == 1 for _, _, count in buckets)
    names = ("last",) if is_exact else ("last", "min", "max", "mean")
    empty = {"last": [], "min": [], "max": [], "mean": []}
    parts = {name: [value if isinstance(value, list) else [value] * 4 for value in values] for name, values in columns.items()}
    return {
        "width": 1 if is_exact else 8,
        "first": [first for first, _, _ in buckets],
        "last": [last for _, last, _ in buckets],
        "steps": [count for _, _, count in buckets],
        "first_at": [TIME] * len(buckets),
        "last_at": [TIME] * len(buckets),
        "columns": {
            name: empty | {part: [value[at] for value in values] for at, part in enumerate(names)} for name, values in parts.items()
        },
    }


def history_of(spans, is_whole=True, events=(), evaluations=None, **columns):
    """A history whose newest event has the number of its last step."""
    newest = spans[-1] if spans and isinstance(spans[-1], int) else spans[-1][1] if spans else 0
    tables = {"metrics": table(spans, **columns), "evaluations": evaluations or table()}
    return {"object": "history", "run_id": "run-1", "newest": newest, "is_whole": is_whole, "events": list(events), **tables}
