"""The page's view of a plan."""

from gradbus.plan import CARDS, MOST_CARDS

PLAN = {
    "card": {"name": "l4", "memory": 22 << 30, "count": 2, "cores": 0},
    "model": {"architecture": "Qwen2ForCausalLM", "parameters": 5, "trained": 5},
    "tenants": [
        {
            "name": "trainer",
            "bytes": 3 << 30,
            "parts": [{"name": "weights", "bytes": 1 << 30}, {"name": "moments", "bytes": 2 << 30}],
        }
    ],
    "divisions": [
        {
            "placement": "timed",
            "trainers": 1,
            "rollouts": 1,
            "fits": True,
            "rooms": [{"tenants": ["trainer"], "needed": 5, "available": 9}],
            "seconds": {"step": 90, "generate": 60, "train": 20},
        },
        {
            "placement": "shared",
            "trainers": 1,
            "rollouts": 1,
            "fits": False,
            "rooms": [{"tenants": ["trainer"], "needed": 3 << 30, "available": 1 << 30}],
            "seconds": {"step": 9, "generate": 6, "train": 2},
        },
    ],
    "changes": [{"setting": "[trainer.lora]", "tenant": "trainer", "bytes": 1 << 20}],
}


def test_a_plan_is_tables(script):
    text = script("plan/plan_tables.js", "return page.planTables(given[0]).map((part) => part.textContent);", PLAN)
    assert text[0] == "Qwen2ForCausalLM, 2 cards of 22.0 GiB: l4"
    assert text[1] == "Memory of the trainer: 3.0 GiB Part Memory weights 1.0 GiB moments 2.0 GiB"
    assert "One card, in turns 1 1 1 min 30 s 1 min 20 s" in text[2]
    assert "does not fit: 2.0 GiB too much" in text[2]
    assert text[3].endswith("[trainer.lora] trainer 1.0 MiB")


def test_a_spec_is_sent_as_what_it_is_and_faults_are_listed(script):
    body = """
      const sent = [];
      globalThis.fetch = async (path, options) => {
        sent.push([path, options.method, options.headers["Content-Type"]]);
        const problem = { detail: "no", errors: [{ path: "a.b", message: "is bad" }] };
        return { ok: false, status: 422, headers: new Map(), json: async () => problem };
      };
      const found = [];
      for (const text of ['{"name": "x"}', 'name = "x"']) {
        found.push(...(await page.answered(text, "l4", 2)).map((part) => part.textContent));
      }
      return { sent, found };
    """
    answer = script("plan/plan_view.js", body)
    types = ["application/json", "application/toml"]
    assert answer["sent"] == [["/v1/plans?gpu=l4&gpus=2", "POST", kind] for kind in types]
    assert answer["found"] == ["no a.b is bad"] * 2


def test_too_few_cards_are_told_in_place_of_an_empty_table(script):
    body = "return page.planTables(given[0]).map((part) => part.textContent);"
    text = script("plan/plan_tables.js", body, PLAN | {"divisions": []})
    assert "Too few cards: trainer and engine have one each." in text
    assert not any(part.startswith("What a step takes") for part in text)


def test_the_page_offers_the_cards_of_the_command(script):
    names, most = script("plan/plan_view.js", "return [page.CARDS, page.MOST_CARDS];")
    assert sorted(names) == sorted(CARDS)
    assert most == MOST_CARDS


def test_an_older_answer_does_not_replace_a_newer_one(script):
    body = """
      const root = document.createElement("div"), listeners = {}, waiting = [];
      Object.getPrototypeOf(root).addEventListener = (name, listener) => { listeners[name] = listener; };
      Object.defineProperty(Object.getPrototypeOf(root), "value", { get: () => "", set() {} });
      globalThis.fetch = () => new Promise((resolve) => waiting.push(resolve));
      await page.showPlan({ root, query: new URLSearchParams(), can: () => true });
      const submitted = [1, 2].map(() => listeners.submit({ preventDefault() {} }));
      const answer = (detail) => ({ ok: false, status: 422, headers: new Headers(), json: async () => ({ detail }) });
      waiting[1](answer("the newer answer"));
      await submitted[1];
      waiting[0](answer("the older answer"));
      await submitted[0];
      return root.textContent;
    """
    assert script("plan/plan_view.js", body).endswith("the newer answer")
