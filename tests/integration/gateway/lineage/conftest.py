"""A trainer of a submitted run, as far as other runs see it."""

from dataclasses import dataclass

import pytest
from safetensors.torch import load_file, save

from gradbus.ids import digest_of
from gradbus.v1.weight_store_service_pb2 import CommitCheckpointRequest, OpenTermRequest, PublishVersionRequest
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus.v1.weights_pb2 import CheckpointManifest, Shard, WeightManifest


@dataclass
class ParentTrainer:
    """Publishes and commits versions of a run, whose weights are those of its model plus the step."""

    stub: WeightStoreServiceStub
    objects: object
    run_id: str
    weights: dict
    previous: str = ""

    async def publish(self, step):
        content = save({name: tensor + step for name, tensor in self.weights.items()})
        shard = Shard(digest=await self.objects.put_blob(content), size_bytes=len(content), tensors=sorted(self.weights))
        manifest = WeightManifest(run_id=self.run_id, term=1, step=step, digest=digest_of(b"tensors" + content), shards=[shard])
        await self.stub.PublishVersion(PublishVersionRequest(manifest=manifest))
        return manifest

    async def commit(self, step):
        version = await self.publish(step)
        manifest = CheckpointManifest(run_id=self.run_id, term=1, step=step, weights=version, previous=self.previous)
        self.previous = (await self.stub.CommitCheckpoint(CommitCheckpointRequest(manifest=manifest))).digest
        return version


@pytest.fixture
def trainer_of(channel, objects, model_folder):
    async def of(run_id):
        stub = WeightStoreServiceStub(channel)
        await stub.OpenTerm(OpenTermRequest(run_id=run_id, term=1))
        return ParentTrainer(stub, objects, run_id, load_file(model_folder / "model.safetensors"))

    return of


@pytest.fixture
async def trainer(trainer_of, submitted):
    """Trains the submitted run."""
    return await trainer_of(submitted["id"])
