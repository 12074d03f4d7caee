"""Versions that a server samples with carry what the trainer computes, and a worker finds it in the head."""

import numpy as np
import pytest

from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_weight_store.ledger import head_of

LORA = {"trainer": {"learning_rate": 1e-2, "lora": {"rank": 2}}}
SERVER = {"rollout": {"engine": "sglang"}}


def stored_head(manifest):
    return WeightManifest.FromString(head_of(manifest).SerializeToString())


@pytest.mark.parametrize(
    ("sections", "carries"), [(LORA | SERVER, True), (LORA, False), (SERVER, True)], ids=["adapters", "embedded", "whole"]
)
async def test_versions_for_a_server_come_with_a_probe(new_run, make_spec, sections, carries):
    run = await new_run(make_spec(**sections))
    await run.write(range(12))
    await run.train()
    manifests = [(await run.stub.GetVersion(pb.GetVersionRequest(run_id=run.run_id, step=step))).manifest for step in (5, 6)]
    assert [manifest.HasField("probe") for manifest in manifests] == [carries] * 2
    assert [stored_head(manifest).HasField("probe") for manifest in manifests] == [carries] * 2
    if carries:
        before, after = (manifest.probe for manifest in manifests)
        assert before.token_ids == after.token_ids
        assert before.logprobs != after.logprobs
        base = [before.base_logprobs, after.base_logprobs]
        assert base == ([base[0]] * 2 if "trainer" in sections else [before.logprobs, after.logprobs])
        assert len(np.frombuffer(after.logprobs, "<f4")) == len(np.frombuffer(after.token_ids, "<i4")) - 1
        assert stored_head(manifests[1]).probe == after
