"""A deployment on a cluster; skipped without GRADBUS_TEST_KUBECONFIG. docs/kubernetes.md says what the cluster needs."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from cluster_lab import NAMESPACE, RUN_SECONDS, START_SECONDS, Cluster
from smoke import make_example, smoke_spec, train

from gradbus.embedded import Stack, StackConfig


def pytest_collection_modifyitems(items):
    reason = missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("kubernetes")
            item.add_marker(pytest.mark.timeout(START_SECONDS + RUN_SECONDS))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def missing() -> str:
    if not os.environ.get("GRADBUS_TEST_KUBECONFIG"):
        return "GRADBUS_TEST_KUBECONFIG names no cluster; docs/kubernetes.md says what these tests need"
    return "" if shutil.which("kubectl") else "kubectl is not installed"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    one = Cluster(tmp_path_factory.mktemp("deployment"))
    there = one("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name")
    assert not there, f"the cluster has a namespace {NAMESPACE} already; these tests would delete it: give them another cluster"
    try:
        one.install()
        yield one
    finally:
        one.uninstall()


@pytest.fixture(scope="session")
def spec(tmp_path_factory):
    return smoke_spec(make_example(tmp_path_factory.mktemp("example")))


@pytest.fixture(scope="session")
def true_digest(tmp_path_factory, spec):
    """The weights of the same run on the embedded stack."""

    async def run():
        async with Stack(StackConfig(state=tmp_path_factory.mktemp("state"), port=0)) as stack:
            return await train(stack, spec)

    outcome = asyncio.run(run())
    assert outcome.state == "succeeded"
    return outcome.digest


@pytest.fixture(scope="session")
def client(cluster):
    with cluster.client() as one:
        yield one
