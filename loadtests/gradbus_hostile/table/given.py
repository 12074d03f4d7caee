"""Runs on given responses: kinds, rows, and models that cannot be ranked with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gradbus_hostile.damage import Damage, family, fields
from gradbus_hostile.material import Json, Material, good_rows, labelled, pair, row
from gradbus_hostile.table.submission import ANY, FAILED, HARMLESS, REFUSED, Submission

_LATE: Final = 200
"""Rows that the gateway encodes."""
_LONG: Final = "sun " * 5000
_COMPLETION: Final = {"data": {"completion": "answer"}}


def _given(name: str, kind: object, *lines: str, ends: frozenset[Any] = REFUSED, **changes: Any) -> Submission:
    def body(material: Material) -> Json:
        data = changes.get("data", {})
        made = material.given(kind, lines, **{section: value for section, value in changes.items() if section != "data"})
        return made | {"data": made["data"] | data}

    return Submission(f"given: {name}", body, ends)


def _ranked(name: str, change: Damage, ends: frozenset[Any] = REFUSED, **changes: Any) -> Submission:
    def body(material: Material) -> Json:
        return material.given("reward_model", good_pairs(), **changes) | {"model": material.model(change)["model"]}

    return Submission(f"given: {name}", body, ends)


def _held_out(name: str, *lines: str, ends: frozenset[Any] = REFUSED, **changes: Any) -> Submission:
    def body(material: Material) -> Json:
        made = material.given("dpo", good_pairs(), **changes)
        return made | {"data": made["data"] | {"eval": material.rows(lines)["data"]["train"]}}

    return Submission(f"given: {name}", body, ends)


def good_pairs(count: int = 8) -> Iterable[str]:
    """Pairs without fault."""
    return [pair()] * count


def good_labels(count: int = 8) -> Iterable[str]:
    """Labelled responses without fault."""
    return [labelled(label=n % 2 == 0) for n in range(count)]


GIVEN: Final = (
    _given("good completions", "sft", *good_rows(8), ends=HARMLESS, **_COMPLETION),
    _given("good pairs", "simpo", *good_pairs(), ends=HARMLESS),
    _given("a kind of nobody", "evil", *good_rows(8)),
    _given("a kind that is a list", ["sft"], *good_rows(8)),
    _given("a kind that is an object", {"sft": 1}, *good_rows(8)),
    _given("completions that are not there", "sft", *good_rows(8)),
    _given("pairs without a rejected response", "dpo", *good_rows(8), data={"chosen": "answer"}),
    _given("pairs without a chosen response", "dpo", *good_rows(8), data={"rejected": "answer"}),
    _given("pairs that are equal", "dpo", pair(rejected="moon")),
    _given("one pair that is equal behind 300 good ones", "orpo", *good_pairs(300), pair(rejected="moon")),
    _given("both responses of one column", "dpo", *good_rows(8), data={"chosen": "answer", "rejected": "answer"}),
    _given("a completion that is a number", "sft", row(answer=7), **_COMPLETION),
    _given("a completion that is null behind 300 good ones", "sft", *good_rows(300), row(answer=None), **_COMPLETION),
    _given("a completion that is empty", "sft", row(answer=""), **_COMPLETION),
    _given("a completion in half a surrogate pair", "sft", '{"prompt": "sun", "answer": "\\ud800"}', **_COMPLETION),
    _given("messages after text", "dpo", pair(chosen=[{"role": "assistant", "content": "moon"}])),
    _given("messages of nobody", "dpo", pair([{"role": "user", "content": "sun"}], [{"content": 7}], "sun")),
    _given(
        "a role that is a template",
        "sft",
        row([{"role": "user", "content": "sun"}], answer=[{"role": "{{ 1 / 0 }}", "content": "a"}]),
        ends=ANY,
        **_COMPLETION,
    ),
    _given("a completion beyond the context", "sft", row(answer=_LONG), **_COMPLETION),
    _given(
        "a completion beyond the context behind the checked rows", "sft", *good_rows(_LATE), row(answer=_LONG), ends=FAILED, **_COMPLETION
    ),
    _given("a pair beyond the context behind the checked rows", "dpo", *good_pairs(_LATE), pair(rejected=_LONG), ends=FAILED),
    _given("a learning rate of 10", "ipo", *good_pairs(), ends=ANY, trainer={"learning_rate": 10.0, "max_grad_norm": 1e12}),
    _given("a beta of 1,000", "dpo", *good_pairs(), ends=ANY, preference={"beta": 1000.0}),
    _given("a beta of 0", "dpo", *good_pairs(), preference={"beta": 0.0}),
    _given("a loss that is a list", "dpo", *good_pairs(), preference=[1]),
    _given("a scorer that nothing asks", "dpo", *good_pairs(), reward={"service": "http://127.0.0.1:9/score"}),
    _given("good labels", "kto", *good_labels(), ends=HARMLESS),
    _given("one label", "kto", labelled(), ends=HARMLESS),
    _given("labels that are not there", "kto", *good_labels(), data={"label": "good"}),
    _given("a label that is 1", "kto", labelled(label=1)),
    _given("a label that is text behind 300 good ones", "kto", *good_labels(300), labelled(label="true")),
    _given("a label that is null", "kto", labelled(label=None)),
    _given("labels in the column of completions", "kto", *good_labels(), data={"label": "completion"}),
    _given("a label of a conversation without an answer", "kto", '{"turns": [], "label": true}', data={"messages": "turns"}),
    _given("a labelled response beyond the context", "kto", *good_labels(_LATE), labelled(completion=_LONG), ends=FAILED),
    _given("weights of 0", "kto", *good_labels(), ends=ANY, preference={"desirable_weight": 0.0, "undesirable_weight": 0.0}),
    _given("a weight below 0", "kto", *good_labels(), preference={"desirable_weight": -1.0}),
    _held_out("good held-out pairs", *good_pairs(), ends=HARMLESS, evaluation={"every": 1}),
    _held_out("held-out pairs that are none", *good_rows(8)),
    _held_out("a held-out pair that is equal", pair(rejected="moon")),
    _held_out("a held-out pair beyond the context behind the checked rows", *good_pairs(_LATE), pair(rejected=_LONG), ends=FAILED),
    _held_out("a metric of a loss", *good_pairs(), evaluation={"metric": "exact"}),
    _ranked("a good reward model", lambda _: None, HARMLESS),
    _ranked("a reward model of labels without end", fields("config.json", num_labels=2**63), HARMLESS | REFUSED),
    _ranked("a reward model of a family without one", family("gpt2")),
    _ranked("a reward model with adapters", lambda _: None, trainer={"lora": {"rank": 2}}),
    _ranked("a reward model in half precision", lambda _: None, trainer={"dtype": "bf16"}),
)
