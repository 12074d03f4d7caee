"""A stream of bytes becomes the cache's files, each whole and under its own digest, or none."""

import pytest

from gradbus.errors import CorruptRecordError
from gradbus.ids import digest_of
from gradbus.v1.weights_pb2 import Shard
from gradbus_rollout.weights.stream_writer import ShardStreamWriter

CONTENTS = [b"first", b"", b"second one", b"3"]


def shard(content, digest=None):
    return Shard(digest=digest or digest_of(content), size_bytes=len(content))


def take(tmp_path, shards, stream, piece_bytes):
    files = ShardStreamWriter(shards, tmp_path / "shards", tmp_path / "scratch")
    for start in range(0, len(stream), piece_bytes):
        files.write(memoryview(stream)[start : start + piece_bytes])
    files.close()
    return files, {path.name: path.read_bytes() for path in (tmp_path / "shards").iterdir()}


@pytest.mark.parametrize("piece_bytes", [1, 4, 5, 6, 100])
def test_a_stream_is_taken_apart_into_its_shards(tmp_path, piece_bytes):
    files, found = take(tmp_path, [shard(content) for content in CONTENTS], b"".join(CONTENTS), piece_bytes)
    assert found == {digest_of(content).removeprefix("sha256:"): content for content in CONTENTS}
    assert files.damaged == []
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_does_not_match_its_digest_is_thrown_away_and_what_does_is_kept(tmp_path):
    files, found = take(tmp_path, [shard(b"good"), shard(b"bad!", digest_of(b"good")), shard(b"fine")], b"goodbad?fine", 3)
    assert sorted(found.values()) == [b"fine", b"good"]
    assert files.damaged == [digest_of(b"good")]


def test_a_shard_that_is_not_whole_leaves_nothing(tmp_path):
    _, found = take(tmp_path, [shard(b"whole"), shard(b"in part")], b"wholein", 4)
    assert list(found.values()) == [b"whole"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_two_streams_at_a_time_do_not_meet(tmp_path):
    left_behind = ShardStreamWriter([shard(b"older")], tmp_path / "shards", tmp_path / "scratch")
    left_behind.write(memoryview(b"old"))
    _, found = take(tmp_path, [shard(b"newer")], b"newer", 2)
    left_behind.write(memoryview(b"er"))
    assert list(found.values()) == [b"newer"]
    assert sorted(path.read_bytes() for path in (tmp_path / "shards").iterdir()) == [b"newer", b"older"]


def test_a_digest_that_is_none_never_becomes_a_path(tmp_path):
    with pytest.raises(CorruptRecordError, match="is not a digest"):
        take(tmp_path, [shard(b"x", "sha256:../../outside")], b"x", 1)
    assert list(tmp_path.iterdir()) == []
