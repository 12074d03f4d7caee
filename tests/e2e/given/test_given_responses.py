"""Runs that train on the responses of a dataset: nothing is sampled and nothing is judged."""

from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from gradbus.client import document

ANSWERS = {"sun": "moon", "moon": "star", "star": "sky", "sky": "cloud", "cloud": "rain", "rain": "snow", "snow": "wind", "wind": "sun"}
RATE, CLIP = 1e-2, 1.0


@pytest.fixture(scope="module")
def supervised(models, rows):
    """Makes a spec on completions: six steps of four rows."""
    train = rows({"prompt": f"{word} and", "completion": f" {answer}"} for word, answer in ANSWERS.items())

    def make(**changes):
        body = {
            "name": "supervised",
            "kind": "sft",
            "model": {"path": str(models / "llama")},
            "data": {"train": train},
            "schedule": {"groups_per_step": 4, "steps": 6},
            "trainer": {"learning_rate": RATE, "max_grad_norm": CLIP},
            "checkpoint": {"every": 3, "keep": 100},
        }
        return {name: body.get(name, {}) | fields if isinstance(fields, dict) else fields for name, fields in (body | changes).items()}

    return make


@pytest.fixture(scope="module")
def paired(models, rows, supervised):
    """Makes a spec on pairs: six steps of four pairs."""
    given = list(ANSWERS.items())
    train = rows({"prompt": f"{word} and", "better": f" {answer}", "worse": f" {word} {word}"} for word, answer in given)

    def make(kind, **changes):
        data = {"train": train, "chosen": "better", "rejected": "worse"}
        return supervised(name="pairs", kind=kind, data=data, **changes)

    return make


@pytest.fixture(scope="module")
def trained_on_pairs(lab, paired):
    """The run of a kind; tests that only look at one share it."""
    return cache(lambda kind: lab.train(paired(kind)))


@pytest.fixture(scope="module")
def labelled(rows, supervised):
    """Makes a spec on labelled responses: six steps of four."""
    given = [(word, answer if at % 3 else f"{word} {word}", at % 3 > 0) for at, (word, answer) in enumerate(ANSWERS.items())]
    train = rows({"prompt": f"{word} and", "answer": f" {answer}", "good": label} for word, answer, label in given)

    def make(**changes):
        data = {"train": train, "completion": "answer", "label": "good"}
        weights = {"desirable_weight": 1.0, "undesirable_weight": 1.5}
        return supervised(name="labels", kind="kto", data=data, preference=weights, **changes)

    return make


def response_logprobs(model, prompt, response):
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def dpo(policy, reference):
    differences = [(now - base).sum() for now, base in zip(policy, reference, strict=True)]
    return -torch.nn.functional.logsigmoid(0.1 * (differences[0] - differences[1]))


def ipo(policy, reference):
    differences = [(now - base).mean() for now, base in zip(policy, reference, strict=True)]
    return (differences[0] - differences[1] - 5.0) ** 2


def simpo(policy, _):
    return -torch.nn.functional.logsigmoid(2.0 * (policy[0].mean() - policy[1].mean()) - 1.0)


def orpo(policy, _):
    odds = [(logprobs.mean() - (1.0 - logprobs.mean().exp()).log()) for logprobs in policy]
    return -policy[0].mean() - 0.1 * torch.nn.functional.logsigmoid(odds[0] - odds[1])


def pair_loop(folder, steps, loss_of):
    """Loss of each step of a loop over pairs [(prompt, chosen), (prompt, rejected), ...]; sums are float64."""
    model, base = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for rows in steps:
        found = []
        for chosen, rejected in zip(rows[::2], rows[1::2], strict=True):
            with torch.no_grad():
                reference = [response_logprobs(base, *row) for row in (chosen, rejected)]
            found.append(loss_of([response_logprobs(model, *row) for row in (chosen, rejected)], reference))
        loss = torch.stack(found).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def label_loop(folder, steps, undesirable):
    """Loss and z of each step of a loop over [(prompt, response), (prompt, another row's response), ...] with these labels."""
    model, base = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    found = []
    for rows, bad in zip(steps, undesirable, strict=True):
        with torch.no_grad():
            distances = [(response_logprobs(model, *row) - response_logprobs(base, *row)).sum() for row in rows[1::2]]
            references = [response_logprobs(base, *row).sum() for row in rows[::2]]
            z = max(0.0, float(torch.stack(distances).mean()))
        terms = []
        for row, reference, is_bad in zip(rows[::2], references, bad, strict=True):
            ratio = response_logprobs(model, *row).sum() - reference
            terms.append(1.5 * (1.0 - torch.sigmoid(0.1 * (z - ratio))) if is_bad else 1.0 - torch.sigmoid(0.1 * (ratio - z)))
        loss = torch.stack(terms).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        found.append((loss.item(), z))
    return found


def plain_loop(folder, steps):
    """Loss of each step, and the weights, of a loop over [(prompt ids, response ids)] with torch's own cross-entropy and AdamW."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for rows in steps:
        count = sum(len(response) for _, response in rows)
        loss = torch.zeros(())
        for prompt, response in rows:
            logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
            loss = loss + torch.nn.functional.cross_entropy(logits, torch.tensor(response), reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def trained_rows(lab, run):
    """By step, the token ids of each prompt and response."""
    steps = [[] for _ in range(run["steps"])]
    for sample in document(lab.client.samples_page(run["id"], limit=1000, include="tokens"))["data"]:
        steps[sample["step"]].append((sample["tokens"]["prompt_ids"], sample["tokens"]["ids"]))
    return steps


def test_a_supervised_run_is_a_plain_loop_over_cross_entropy(lab, supervised, models, tmp_path):
    run = lab.train(supervised())
    losses, weights = plain_loop(models / "llama", trained_rows(lab, run))
    assert [step["loss"] for step in lab.events(run["id"], "metrics")] == pytest.approx(losses, rel=2e-6)
    lab.client.export(run["id"], tmp_path / "export")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export").state_dict()
    for name, tensor in weights.items():
        # AdamW divides by gradients, of which some are rounding errors.
        torch.testing.assert_close(exported[name], tensor, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("loss_of", [dpo, ipo, simpo, orpo])
def test_a_run_on_pairs_is_a_plain_loop_over_its_loss(lab, trained_on_pairs, models, loss_of):
    run = trained_on_pairs(loss_of.__name__)
    expected = pair_loop(models / "llama", trained_rows(lab, run), loss_of)
    steps = lab.events(run["id"], "metrics")
    assert [step["loss"] for step in steps] == pytest.approx(expected, rel=1e-4)
    assert steps[-1]["accuracy"] > steps[0]["accuracy"]
    assert steps[-1]["margin"] > steps[0]["margin"]
    assert "reward" not in steps[0]
    assert run["kind"] == loss_of.__name__


def test_a_run_on_labels_is_a_plain_loop_over_its_loss(lab, gradbus, labelled, models):
    run = lab.train(labelled())
    samples = document(lab.client.samples_page(run["id"], limit=1000))["data"]
    labels = [[sample["label"] for sample in samples if sample["step"] == step] for step in range(run["steps"])]
    assert {label for step in labels for label in step[1::2]} == {"mismatched"}
    undesirable = [[label == "undesirable" for label in step[::2]] for step in labels]
    assert sum(map(sum, undesirable)) == 9
    expected = label_loop(models / "llama", trained_rows(lab, run), undesirable)
    steps = lab.events(run["id"], "metrics")
    assert [step["loss"] for step in steps] == pytest.approx([loss for loss, _ in expected], rel=1e-4)
    assert [step["kl"] for step in steps] == pytest.approx([z for _, z in expected], abs=1e-3)
    assert steps[-1]["margin"] > 0.0
    assert not {"accuracy", "reward"} & steps[0].keys()
    assert run["progress"]["pair_accuracy"] is None
    (listed,) = [line for line in gradbus("runs").stdout.splitlines() if run["id"] in line]
    assert listed.split()[4:6] == ["kto", "succeeded"]
    assert "  loss " in listed
    assert "accuracy" not in listed
    [first, second] = gradbus("samples", run["id"], "--index", 0).stdout.splitlines()[0:8:3][:2]
    assert first.startswith("0.0  step 0  ")
    assert second == "0.1  step 0  mismatched  train"


def test_the_command_shows_a_run_on_pairs_by_its_loss_and_its_labels(gradbus, trained_on_pairs):
    run = trained_on_pairs("dpo")
    (listed,) = [line for line in gradbus("runs").stdout.splitlines() if run["id"] in line]
    assert listed.split()[4:6] == ["dpo", "succeeded"]
    for line in (listed, gradbus("show", run["id"]).stdout.partition("progress")[2].splitlines()[0]):
        assert "  loss " in line
        assert "reward" not in line
    samples = gradbus("samples", run["id"], "--index", 0).stdout.splitlines()
    assert [line for line in samples if line.startswith("0.")] == ["0.0  step 0  chosen  train", "0.1  step 0  rejected  train"]
    steps = gradbus("events", run["id"], "--type", "metrics").stdout.splitlines()
    assert all(" margin " in line and "reward" not in line for line in steps)


def test_a_reward_model_learns_the_order_of_its_pairs_and_then_scores_a_run(lab, paired, spec, tmp_path):
    trained = lab.train(paired("reward_model", schedule={"groups_per_step": 4, "steps": 24}))
    steps = lab.events(trained["id"], "metrics")
    assert steps[0]["loss"] == pytest.approx(0.6931472, abs=1e-6)
    assert steps[-1]["accuracy"] == 1.0
    assert steps[-1]["loss"] < 0.1
    lab.client.export(trained["id"], tmp_path / "export")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export")
    for chosen, rejected in [rows[at : at + 2] for rows in trained_rows(lab, trained)[:2] for at in range(0, 8, 2)]:
        better, worse = (model(torch.tensor([[*prompt, *response]])).logits.item() for prompt, response in (chosen, rejected))
        assert better > worse
    run = lab.train(spec(name="chain-rl", reward={"model": {"run": trained["id"]}}))
    sample = document(lab.client.samples_page(run["id"], limit=1, include="tokens"))["data"][0]
    score = model(torch.tensor([[*sample["tokens"]["prompt_ids"], *sample["tokens"]["ids"]]])).logits.item()
    assert sample["reward"] == pytest.approx(score, abs=1e-4)
