"""Which workers take part in broadcasts."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gradbus.process import WorkerWires
from gradbus_rollout.service import RolloutService
from gradbus_rollout.settings import Settings


def takes_part(tmp_path, transport, engine):
    spec = SimpleNamespace(weights=SimpleNamespace(transport=transport), rollout=SimpleNamespace(engine=engine))
    service = RolloutService(Settings(cache_dir=tmp_path), WorkerWires(None, None, None, None, None))
    return not isinstance(service._receiving(SimpleNamespace(run_id="run", spec=spec)), nullcontext)


@pytest.mark.parametrize(
    ("transport", "engine", "expected"),
    [("collective", "torch", True), ("store", "torch", False), ("collective", "sglang", False)],
)
async def test_only_an_engine_with_torch_takes_part_and_only_where_the_run_asks_for_it(tmp_path, transport, engine, expected):
    assert takes_part(tmp_path, transport, engine) == expected
