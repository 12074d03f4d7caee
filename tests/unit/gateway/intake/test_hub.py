"""Models from the hub: only a commit, only what it announces, within bounds, and nothing stays behind."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from gradbus.errors import SpecError
from gradbus.objects import ObjectStore
from gradbus.spec import ModelSpec, parse_spec
from gradbus_gateway.intake.model.intake import ModelIntake
from gradbus_gateway.settings import GatewaySettings

HUB_ID = "owner/name"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_a-secret-of-the-operator"


@pytest.fixture
def hub(tmp_path, write_model, monkeypatch, new_hub):
    folder = write_model(tmp_path / "there")
    server = new_hub({path.name: path.read_bytes() for path in folder.iterdir()}, HUB_ID, COMMIT)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return server


@pytest.fixture
def new_intake(tmp_path):
    def new(**settings):
        given = GatewaySettings(cache_dir=tmp_path / "cache", **settings)
        return ModelIntake(ObjectStore.open(f"file://{tmp_path}/objects"), given)

    return new


@pytest.fixture
def left(tmp_path):
    """What lies in the cache."""
    return lambda: [path.name for path in (tmp_path / "cache" / "hub").rglob("*")]


MODEL = ModelSpec(path=HUB_ID, revision=COMMIT)


def files_asked(hub):
    return sorted({path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path})


async def fault(intake, model=MODEL):
    stored, faults = await intake.store(model, "someone")
    assert stored is None
    [found] = faults
    assert "/cache" not in str(found)
    return str(found)


async def test_a_model_of_a_commit_is_stored_and_its_download_removed(hub, new_intake, left):
    stored, faults = await new_intake().store(MODEL, "someone")
    assert faults == []
    assert set(stored.spec.files) == set(hub.files)
    assert left() == []


async def test_a_reward_model_is_downloaded_as_one_and_a_policy_refused_before_its_weights(hub, new_intake, tmp_path, write_scorer):
    stored, [found] = await new_intake().store(MODEL, "someone", "reward")
    assert stored is None
    assert "which are no reward model" in str(found)
    assert "model.safetensors" not in files_asked(hub)
    hub.files = {path.name: path.read_bytes() for path in write_scorer(tmp_path / "scorer").iterdir()}
    stored, faults = await new_intake().store(MODEL, "someone", "reward")
    assert faults == []
    assert set(stored.spec.files) == set(hub.files)


async def test_only_what_is_stored_is_downloaded(hub, new_intake):
    hub.files |= {"consolidated.safetensors": b"x", "pytorch_model.bin": b"x", "original/params.json": b"{}", "README.md": b"x"}
    hub.files |= {"trainer_state.json": b"{}", "..json": b"{}", "a b.json": b"{}", ".hidden.json": b"{}"}
    hub.sizes = {"trainer_state.json": 1 << 50}
    stored, _ = await new_intake().store(MODEL, "someone")
    assert files_asked(hub) == sorted(stored.spec.files) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


async def test_one_model_is_downloaded_once_whoever_asks_meanwhile_and_later(hub, new_intake):
    intake = new_intake()
    results = await asyncio.gather(*(intake.store(MODEL, "someone") for _ in range(4)))
    assert all(faults == [] for _, faults in results)
    assert (await intake.store(MODEL, "someone"))[1] == []
    assert sum(path.startswith("/api/models") and "/revision/" in path for path in hub.asked) == 1


async def test_who_waits_with_several_models_keeps_none_of_them_from_others(hub, new_intake):
    intake, popular = new_intake(), MODEL.model_copy(update={"path": "owner/popular"})
    hub.hold.set()
    waiting = [asyncio.create_task(intake.store(MODEL, "greedy"))]
    await asyncio.to_thread(hub.reached.wait, 60)
    waiting.append(asyncio.create_task(intake.store(popular, "greedy")))
    await asyncio.sleep(0)
    assert "cannot be taken from the hub" in await fault(intake, popular)
    assert not any(task.done() for task in waiting)
    hub.free.set()
    await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    "revision", ["main", "v1", COMMIT[:39], COMMIT + "0", COMMIT.upper(), COMMIT + "\n", "../../../blobs/crafted", "refs/pr/1", ""]
)
def test_a_revision_is_a_commit(revision):
    body = {"name": "a", "model": {"path": HUB_ID, "revision": revision}, "data": {"train": "x"}, "reward": {}, "schedule": {"steps": 1}}
    with pytest.raises(SpecError) as refused:
        parse_spec(body)
    [found] = [found for found in refused.value.faults if found.path == "model.revision"]
    assert "40 hex digits" in str(found)


async def test_what_a_cache_of_the_library_says_is_never_followed(hub, new_intake, tmp_path, write_model):
    """The library joins a commit that it reads from `refs/<revision>` to a path: a crafted cache led to any folder of the server."""
    outside = write_model(tmp_path / "outside")
    repository = tmp_path / "cache" / "hub" / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / COMMIT).write_text(str(outside))
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / COMMIT).symlink_to(outside)
    hub.status = 503
    assert "cannot be taken from the hub" in await fault(new_intake())
    crafted = MODEL.model_copy(update={"revision": f"../../../../..{outside}"})
    assert "cannot be taken from the hub" in await fault(new_intake(), crafted)


async def test_a_commit_of_another_name_is_refused(hub, new_intake):
    hub.sha = COMMIT[::-1]
    assert "is not a commit of it" in await fault(new_intake())


@pytest.mark.parametrize(
    ("sizes", "settings", "words"),
    [
        ({"model.safetensors": 1 << 50}, {}, "GRADBUS_MAX_MODEL_BYTES"),
        ({}, {"max_model_bytes": 1000}, "at most 1000 are taken"),
        ({"config.json": 2 << 20}, {}, "config.json has 2097152 bytes, at most 1048576"),
        ({"model.safetensors": None}, {}, "no model.safetensors of a known size"),
        ({"model.safetensors": 1 << 49}, {"max_model_bytes": 1 << 60}, "no room"),
    ],
)
async def test_sizes_are_asked_before_anything_large_is_downloaded(hub, new_intake, left, sizes, settings, words):
    hub.sizes = sizes
    assert words in await fault(new_intake(**settings))
    assert "model.safetensors" not in files_asked(hub)
    assert left() == []


async def test_the_number_of_files_is_bounded(hub, new_intake):
    del hub.files["model.safetensors"]
    shards = {f"shard-{number}.safetensors": b"{}" for number in range(1200)}
    hub.files |= shards | {"model.safetensors.index.json": json.dumps({"weight_map": {name: name for name in shards}}).encode()}
    assert "at most 1100 are taken" in await fault(new_intake())
    assert not shards.keys() & set(files_asked(hub))


async def test_weights_of_a_family_that_cannot_be_trained_are_not_downloaded(hub, new_intake):
    hub.files["config.json"] = json.dumps({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}).encode()
    found = await fault(new_intake())
    assert "config.json names the architectures ['T5ForConditionalGeneration'], which are not supported" in found
    assert "model.safetensors" not in files_asked(hub)


async def test_shards_are_those_of_the_index(hub, new_intake):
    del hub.files["model.safetensors"]
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": "../../secret.safetensors"}}).encode()
    assert "not a plain file name" in await fault(new_intake())


async def test_a_download_that_takes_too_long_is_killed_and_removed(hub, new_intake, left):
    hub.hold.set()
    assert "longer than 8 s (GRADBUS_MAX_HUB_SECONDS)" in await fault(new_intake(max_hub_seconds=8.0))
    assert left() == []
    hub.hold.clear()
    assert (await new_intake().store(MODEL, "someone"))[1] == []


async def test_a_cancelled_submission_leaves_no_process_and_no_files(hub, new_intake, left):
    hub.hold.set()
    storing = asyncio.create_task(new_intake().store(MODEL, "someone"))
    await asyncio.to_thread(hub.reached.wait, 60)
    assert len(downloading()) == 1
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    assert left() == []
    assert downloading() == []


def downloading():
    """Command lines of this process's children that download."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [command for child in children if b"hub_download" in (command := Path(f"/proc/{child}/cmdline").read_bytes())]


async def test_the_token_goes_to_the_hub_and_nowhere_else(hub, new_intake, monkeypatch):
    monkeypatch.setenv("GRADBUS_HF_TOKEN", TOKEN)
    assert TOKEN not in repr(GatewaySettings())
    assert (await new_intake().store(MODEL, "someone"))[1] == []
    assert hub.tokens - {None} == {f"Bearer {TOKEN}"}
    hub.status, hub.message = 403, f"the token {TOKEN} may not"
    found = await fault(new_intake())
    assert TOKEN not in found
    assert "(token) may not" in found


async def test_the_token_may_be_a_file_of_the_secrets(hub, new_intake, tmp_path, monkeypatch):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "gradbus_hf_token").write_text(TOKEN)
    monkeypatch.setenv("GRADBUS_SECRETS_DIR", str(tmp_path / "secrets"))
    assert (await new_intake().store(MODEL, "someone"))[1] == []
    assert hub.tokens - {None} == {f"Bearer {TOKEN}"}
