"""A gateway's intake over a folder of object storage, with a root of models."""

import pytest

from gradbus.errors import SpecError
from gradbus.objects import ObjectStore
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.settings import GatewaySettings


@pytest.fixture
def objects(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


@pytest.fixture
def intake(tmp_path, fork_server, objects):
    return SpecIntake(objects, fork_server, GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache"), None)


@pytest.fixture
def refused(intake):
    """The only fault of a submission, as text."""

    async def submit(body):
        with pytest.raises(SpecError) as caught:
            await intake.accept(body, "key")
        [fault] = caught.value.faults
        return str(fault)

    return submit
