"""Files of datasets from this machine, from buckets and from the hub's library."""

import hashlib
import json

import obstore
import pytest
from obstore.store import from_url
from s3_servers import KEY_ID, SECRET, moto_server  # noqa: F401 - a fixture

from gradbus.client.dataset_files import dataset_files
from gradbus.client.upload import upload_local_files
from gradbus.errors import DatasetError, StorageError

ROW = b'{"prompt": "a"}\n'


@pytest.fixture
def uploaded():
    found = {}

    def upload(path, digest):
        found[digest] = path.read_bytes()

    upload.found = found
    return upload


def digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_folders_lists_and_mixtures_are_uploaded_file_by_file(tmp_path, uploaded):
    (tmp_path / "many").mkdir()
    for name in ("b", "a", "c"):
        (tmp_path / "many" / f"{name}.jsonl").write_text(name)
    (tmp_path / "one.jsonl").write_text("one")
    data = {
        "eval": ["one.jsonl", "sha256:1", "/of/the/server"],
        "mixture": [{"source": "many", "weight": 0.5}, {"source": "one.jsonl"}, 7],
    }
    body, faults = upload_local_files({"data": data}, tmp_path, uploaded)
    names = [digest(name) for name in (b"a", b"b", b"c")]
    assert faults == []
    assert body["data"]["eval"] == [digest(b"one"), "sha256:1", "/of/the/server"]
    assert body["data"]["mixture"] == [{"source": names, "weight": 0.5}, {"source": digest(b"one")}, 7]
    assert sorted(uploaded.found) == sorted([*names, digest(b"one")])


def test_a_folder_without_a_dataset_is_a_fault_of_its_field(tmp_path, uploaded):
    (tmp_path / "empty").mkdir()
    _, faults = upload_local_files({"data": {"mixture": [{"source": "empty"}], "eval": "empty"}}, tmp_path, uploaded)
    assert [fault.path for fault in faults] == ["data.eval", "data.mixture.0.source"]
    assert "the folder empty has no dataset" in faults[0].message


def test_the_hub_s_library_gives_rows_as_lines(tmp_path):
    rows = [{"prompt": "2+2=", "answer": {"value": 4}}, {"prompt": "ä", "answer": {"value": None}}]
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [found] = dataset_files(f"hub:{tmp_path}/given?split=train", tmp_path, tmp_path / "scratch")
    assert [json.loads(line) for line in found.read_bytes().splitlines()] == rows
    with pytest.raises(DatasetError, match=r"cannot read hub:.*split=test: .*; see its name, config and split"):
        dataset_files(f"hub:{tmp_path}/given?split=test", tmp_path, tmp_path / "other")
    with pytest.raises(DatasetError, match=r"is no dataset of the hub; write hub:owner/name"):
        dataset_files("hub:owner/name?splitt=test", tmp_path, tmp_path / "third")


async def test_an_object_and_all_objects_below_a_prefix_are_fetched(tmp_path, moto_server, monkeypatch):  # noqa: F811
    objects = moto_server.store(monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for name, content in {"data/b.jsonl": ROW, "data/a.jsonl": b"", "data/notes.txt": b"x"}.items():
        await objects.put(name, content)
    bucket = objects.url
    [one] = dataset_files(f"{bucket}/data/b.jsonl", tmp_path, tmp_path / "one")
    assert one.read_bytes() == ROW
    assert [file.read_bytes() for file in dataset_files(f"{bucket}/data", tmp_path, tmp_path / "all")] == [b"", ROW]
    with pytest.raises(DatasetError, match="has no dataset; name an object"):
        dataset_files(f"{bucket}/other", tmp_path, tmp_path / "none")
    with pytest.raises(StorageError, match=r"cannot read s3://.*; check the url, and the credentials"):
        dataset_files(f"{bucket}/data/gone.jsonl", tmp_path, tmp_path / "gone")


def test_a_folder_has_one_order_on_a_disk_and_in_object_storage(tmp_path, moto_server, monkeypatch):  # noqa: F811
    url = moto_server.store(monkeypatch).url
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    bucket = from_url(url)
    names = ["a-b.jsonl", "a.jsonl", "a/x.jsonl", "a/y/x.jsonl", "a0.jsonl", "b/x.jsonl"]
    for name in (*names, ".cache/hidden.jsonl", "a/.hidden.jsonl", "a/notes.txt"):
        (tmp_path / "given" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "given" / name).write_text(name)
        obstore.put(bucket, f"given/{name}", name.encode())
    for source in ("given", f"{url}/given"):
        files = dataset_files(source, tmp_path, tmp_path / "scratch")
        assert [file.read_text() for file in files] == names
