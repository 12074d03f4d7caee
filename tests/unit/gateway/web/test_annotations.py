"""Tags and notes on the page."""

import pytest


@pytest.mark.parametrize(
    ("text", "added", "removed"), [("a b", ["b"], []), ("b,  c", ["b", "c"], ["a"]), ("", [], ["a"]), ("a", [], []), (" a\nb ", ["b"], [])]
)
def test_what_is_typed_becomes_tags_to_add_and_to_remove(script, text, added, removed):
    changes = script("run/annotations.js", "return page.changesOf({ tags: ['a'], note: 'old' }, given[0], 'new');", text)
    assert changes == {"add_tags": added, "remove_tags": removed, "note": "new"}


def test_a_note_that_was_not_edited_is_not_sent(script):
    changes = script("run/annotations.js", "return page.changesOf({ tags: ['a'], note: 'old' }, 'a b', 'old');")
    assert changes == {"add_tags": ["b"], "remove_tags": []}


PANEL = """
  const sent = [];
  globalThis.fetch = async (path, { method, body, headers }) => {
    sent.push([path, method, JSON.parse(body), headers["Content-Type"]]);
    const isRefused = body.includes("%");
    const refusal = { detail: "wrong", errors: [{ path: "body.add_tags.0", message: "a tag has letters" }] };
    const answer = isRefused ? refusal : { ...given[0], tags: ["a", "b"], note: "" };
    return { ok: !isRefused, status: 422, headers: new Headers(), json: async () => answer };
  };
  const changed = [];
  const panel = new page.AnnotationPanel({ can: () => given[1] }, given[0], (run) => changed.push(run.tags));
  const shown = [panel.element.textContent];
  const parts = (part) => [part, ...(part.parts ?? []).flatMap(parts)];
  const all = (tag) => parts(panel.element).filter((part) => part.tag === tag);
  if (!all("button").length) return [shown, sent, changed];
  all("button")[0].listeners.click();
  all("input")[0].value = given[2];
  if (given[3] !== undefined) all("textarea")[0].value = given[3];
  panel.set({ ...given[0], tags: ["c"] });
  shown.push(panel.element.textContent);
  await all("form")[0].listeners.submit({ preventDefault: () => {} });
  shown.push(panel.element.textContent);
  return [shown, sent, changed];
"""
LISTENING = """
  const prototype = Object.getPrototypeOf(document.createElement("p"));
  prototype.addEventListener = function (name, listener) { (this.listeners ??= {})[name] = listener; };
  prototype.focus = () => {};
  const value = { get() { return this.typed ?? this.textContent; }, set(text) { this.typed = text; } };
  Object.defineProperty(prototype, "value", value);
"""
RUN = {"id": "run-1", "tags": ["a"], "note": "tries <b>5e-5</b>"}


def test_tags_and_a_note_are_edited_while_the_run_goes_on(script):
    shown, sent, changed = script("run/annotations.js", LISTENING + PANEL, RUN, True, "a b", "note")
    assert shown == [
        "a Edit tags and note tries <b>5e-5</b>",
        "Tags, separated by spaces Note tries <b>5e-5</b> Save Discard",
        "a b Edit tags and note",
    ]
    assert sent == [["/v1/runs/run-1", "PATCH", {"add_tags": ["b"], "remove_tags": [], "note": "note"}, "application/json"]]
    assert changed == [["a", "b"]]


def test_the_form_leaves_a_note_alone_that_somebody_else_writes_meanwhile(script):
    _, sent, _ = script("run/annotations.js", LISTENING + PANEL, RUN, True, "a b")
    assert sent[0][2] == {"add_tags": ["b"], "remove_tags": []}


def test_what_the_gateway_refuses_stays_in_the_form(script):
    shown, sent, changed = script("run/annotations.js", LISTENING + PANEL, RUN, True, "a %", "note")
    assert shown[2] == "Tags, separated by spaces Note tries <b>5e-5</b> wrong body.add_tags.0 a tag has letters Save Discard"
    assert (len(sent), changed) == (1, [])


def test_a_reader_sees_tags_and_note_and_no_button(script):
    assert script("run/annotations.js", PANEL, RUN, False) == [["a tries <b>5e-5</b>"], [], []]


RUNS = """
  const root = document.createElement("div"), controller = new AbortController(), focused = [];
  document.addEventListener = document.removeEventListener = () => {};
  const parts = (part) => [part, ...(part.parts ?? []).flatMap(parts)];
  document.getElementById = (id) => parts(root).find((part) => part.attributes?.id === id);
  document.activeElement = { id: given[1] };
  Object.getPrototypeOf(root).focus = function () { focused.push(this.textContent); };
  globalThis.fetch = async () => ({ ok: given[0].status === 200, headers: new Headers(), ...given[0], json: async () => given[0].body });
  const showing = page.showRuns({ root, signal: controller.signal, query: new URLSearchParams("tag=-a"), showError: () => {} });
  await new Promise(setImmediate); // by then it waits for the next time to read the list
  controller.abort();
  await showing;
  return [root.textContent, focused];
"""


def listed(**fields):
    progress = {"step": 1, "reward": 0.5, "accuracy": None, "teacher_kl": None}
    return {"id": "run-1", "name": "", "kind": "rl", "state": "running", "steps": 9, "progress": progress} | fields


def test_the_list_says_what_is_wrong_with_a_tag(script):
    refusal = {"detail": "wrong", "errors": [{"path": "query.tag.0", "message": "a tag has letters"}]}
    text, _ = script("run/run_list.js", RUNS, {"status": 422, "body": refusal}, "")
    assert "wrong query.tag.0 a tag has letters" in text


def test_a_tag_of_the_list_keeps_the_focus_when_the_list_is_read_again(script):
    page = {"data": [listed(tags=["a", "b"], waiting_for="", reason="", created_at=None)], "has_more": False}
    _, focused = script("run/run_list.js", RUNS, {"status": 200, "body": page}, "tag-run-1-b")
    assert focused == ["b"]
