"""Only machines that sample the same bits join a deterministic run."""

import pytest

from gradbus.bus import Buckets
from gradbus.errors import SettingsError
from gradbus_rollout.engines.determinism import check_determinism
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig


@pytest.fixture
async def probes(bus):
    return await bus.bucket(Buckets.PROBES)


async def test_the_first_worker_writes_the_probe_and_an_equal_one_joins(engine, model_folder, probes, run_id):
    await engine.load([model_folder / "model.safetensors"], 0)
    await check_determinism(engine, (3, 4, 5), run_id, probes)
    written = await probes.get(run_id)
    assert len(written.value) == 64
    await check_determinism(engine, (3, 4, 5), run_id, probes)
    assert (await probes.get(run_id)).revision == written.revision


async def test_a_worker_with_other_bits_is_refused_and_told_what_to_do(engine, model_folder, probes, run_id):
    await engine.load([model_folder / "model.safetensors"], 0)
    await check_determinism(engine, (3, 4, 5), run_id, probes)
    other = TorchEngine.from_folder(model_folder, TorchEngineConfig(slots=8, max_new_tokens=6, temperature=0.5))
    try:
        await other.load([model_folder / "model.safetensors"], 0)
        with pytest.raises(SettingsError, match="samples other bits than the run's first worker; use the same CPU"):
            await check_determinism(other, (3, 4, 5), run_id, probes)
    finally:
        await other.close()
