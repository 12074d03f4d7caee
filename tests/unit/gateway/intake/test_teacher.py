"""A submission with a teacher: stored by digests as the policy is, or refused with what is wrong with it."""

import json

import pytest

from gradbus.ids import digest_of

LETTERS = {character: number for number, character in enumerate("?0123456789+=-x ")}

EXACT = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "2", "operation": "eq"}


@pytest.fixture
def body(tmp_path, write_model):
    """A spec whose models and rows lie under a root of the gateway."""
    for name in ("model", "teacher"):
        write_model(tmp_path / "roots" / name)
    (tmp_path / "roots" / "train.jsonl").write_text('{"prompt": "1+1="}\n')
    return {
        "name": "sums",
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "rollout": {"max_new_tokens": 8, "group_size": 4},
        "algorithm": {"name": "opd"},
        "teacher": {"path": "teacher"},
        "schedule": {"steps": 4, "groups_per_step": 2},
    }


async def test_the_folder_is_stored_by_digests(intake, objects, body, tmp_path):
    spec = await intake.accept(body, "key")
    folder = tmp_path / "roots" / "teacher"
    assert spec.teacher.files == {path.name: digest_of(path.read_bytes()) for path in folder.iterdir()}
    assert await objects.has_blobs(spec.teacher.files.values())
    assert (await intake.accept(spec.model_dump(), "key")) == spec, "a stored spec can be submitted again"


async def test_a_teacher_that_is_nowhere_and_one_that_writes_no_text_are_refused_by_its_own_field(refused, body, tmp_path, write_scorer):
    assert (await refused(body | {"teacher": {"path": "elsewhere"}})).startswith("teacher.path: not a folder")
    write_scorer(tmp_path / "roots" / "teacher")
    assert (await refused(body)).startswith("teacher: ")


@pytest.mark.parametrize(
    ("vocabulary", "words"),
    [
        (LETTERS | {"1": 3, "2": 2}, "token '1' has id 3, not 2"),
        ({name: at for name, at in LETTERS.items() if name != "x"}, "token 'x' of id 14 is missing"),
        (LETTERS | {"y": 16}, "token 'y' of id 16 is one more"),
    ],
)
async def test_other_ids_of_tokens_are_refused_with_the_first_one(refused, body, tmp_path, write_model, write_tokenizer, vocabulary, words):
    folder = tmp_path / "roots" / "teacher"
    write_model(folder, vocab_size=24)
    write_tokenizer(folder, model={"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"})
    fault = await refused(body)
    assert fault.startswith("teacher.files.tokenizer.json: judges the policy's tokens by their ids, and its tokenizer is another one")
    assert f"given {words}; allowed: a teacher with the id" in fault


async def test_a_tokenizer_of_other_bytes_and_the_same_ids_is_taken(intake, body, tmp_path, write_tokenizer):
    folder = tmp_path / "roots" / "teacher"
    write_tokenizer(folder, truncation=None)
    assert (folder / "tokenizer.json").read_bytes() != (tmp_path / "roots" / "model" / "tokenizer.json").read_bytes()
    assert (await intake.accept(body, "key")).teacher.files


async def test_a_tokenizer_that_cannot_be_loaded_is_refused_by_the_teachers_field(refused, body, tmp_path):
    (tmp_path / "roots" / "teacher" / "tokenizer.json").write_text("{}")
    assert (await refused(body)).startswith("teacher.files.tokenizer.json: the tokenizer cannot be loaded")


async def test_fewer_embeddings_than_the_policy_has_are_refused_and_more_are_not(refused, intake, body, tmp_path, write_model):
    write_model(tmp_path / "roots" / "teacher", vocab_size=15)
    assert "vocab_size 15; allowed: at least the policy's vocab_size, 16" in await refused(body)
    write_model(tmp_path / "roots" / "teacher", vocab_size=24)
    assert (await intake.accept(body, "key")).teacher.files


async def test_a_sample_that_may_be_longer_than_the_teachers_context_is_refused(refused, intake, body, tmp_path, write_model):
    write_model(tmp_path / "roots" / "teacher", max_position_embeddings=32)
    fault = await refused(body)
    assert "the longest sample does not fit the teacher's context; given 56 for the prompt + 8; allowed: at most 32 in all" in fault
    body["rollout"]["max_prompt_tokens"] = 24
    assert (await intake.accept(body, "key")).teacher.files


async def test_rows_are_compared_with_a_policy_of_the_same_width(refused, intake, body, tmp_path, write_model):
    body |= {"algorithm": {"name": "opd", "importance": "none", "trust_region": "none"}, "teacher": {"path": "teacher", "top_k": 15}}
    assert (await intake.accept(body, "key")).teacher.top_k == 15
    assert "less than vocab_size, 16" in await refused(body | {"teacher": {"path": "teacher", "top_k": 16}})
    write_model(tmp_path / "roots" / "teacher", vocab_size=24)
    assert (await refused(body)).startswith("teacher.top_k: a row of the teacher is compared with one of the policy")


async def test_rows_of_the_policys_versions_leave_a_token_for_the_rest(refused, intake, body):
    del body["teacher"]
    body |= {"reward": {"grader": EXACT}, "algorithm": {"name": "score_centering", "centering": 15}}
    assert (await intake.accept(body, "key")).algorithm.centering == 15
    body["algorithm"]["centering"] = 16
    assert (await refused(body)).startswith("algorithm.centering: leaves no token for the rest of a row; given 16; allowed: less than")


async def test_code_that_a_configuration_names_is_not_stored(intake, objects, body, tmp_path, write_model):
    write_model(tmp_path / "roots" / "teacher", auto_map={"AutoModel": "evil.Model"})
    files = (await intake.accept(body, "key")).teacher.files
    assert "auto_map" not in json.loads(await objects.get_blob(files["config.json"]))
