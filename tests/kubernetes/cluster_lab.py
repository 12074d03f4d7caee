"""A deployment on a real cluster, by the two commands of docs/kubernetes.md, and queries about its runs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gradbus.client import Client, RetryPolicy, document
from gradbus.errors import ApiError, StackError

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy/kubernetes"
NAMESPACE = "gradbus"
STEPS = 150
START_SECONDS = 600
RUN_SECONDS = 900
FINAL = ("succeeded", "failed", "cancelled")


class Cluster:
    """The cluster of GRADBUS_TEST_KUBECONFIG."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.environment = {**os.environ, "KUBECONFIG": os.environ["GRADBUS_TEST_KUBECONFIG"]}
        # For a server that is older than the manifests: a command that reads them and applies them in its own way.
        self.apply_command = shlex.split(os.environ.get("GRADBUS_TEST_APPLY", "kubectl apply --server-side -f -"))
        self.components = os.environ.get("GRADBUS_TEST_COMPONENTS", "dev").split()
        # Each takes the name of a node.
        self.node_off, self.node_on = (os.environ.get(f"GRADBUS_TEST_NODE_{what}", "") for what in ("OFF", "ON"))
        self.has_ranks = "GRADBUS_TEST_RANKS" in os.environ
        self._forward: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def __call__(self, *words: str, check: bool = True, seconds: float = 120, given: str = "") -> str:
        """Output of kubectl in the namespace."""
        return self._said(["kubectl", "-n", NAMESPACE, *words], given, check=check, seconds=seconds)

    def _said(self, command: list[str], given: str = "", *, check: bool = True, seconds: float = 120) -> str:
        done = subprocess.run(
            command, input=given, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds
        )
        assert not check or done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        return done.stdout

    def command(self, given: str, node: str) -> None:
        """Runs an operator's command for a node."""
        self._said([*shlex.split(given), node])

    def install(self) -> None:
        """Both commands, and waits until all pods are ready."""
        secrets = self._said([sys.executable, "-m", "gradbus.deploy", "kubernetes", "--state", str(self.state)])
        self._said(["kubectl", "apply", "--server-side", "-f", "-"], secrets)
        self.apply()

    def apply(self) -> None:
        """All objects of the components, until they are ready; may be repeated with more components."""
        self._said(self.apply_command, self.manifests(), seconds=START_SECONDS)
        self.wait()

    def manifests(self) -> str:
        """What `kubectl apply -k` sends; by kustomize itself where kubectl has an old one inside."""
        folder = self.state / "kustomization"
        folder.mkdir(exist_ok=True)
        there = os.path.relpath(MANIFESTS, folder.resolve())
        content = {
            "namespace": NAMESPACE,
            "resources": [f"{there}/base"],
            "components": [f"{there}/components/{name}" for name in self.components],
        }
        (folder / "kustomization.yaml").write_text(json.dumps(content))
        return self._said([*(["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]), str(folder)])

    def wait(self) -> None:
        """Until every pod that is wanted is ready."""
        for name in self("get", "deployments,statefulsets", "-o", "name").split():
            self("rollout", "status", name, f"--timeout={START_SECONDS}s", seconds=START_SECONDS + 10)

    def kill(self, component: str) -> None:
        """Every process of the component's pods at once, without notice."""
        chosen = f"app.kubernetes.io/component={component}"
        self("delete", "pod", "-l", chosen, "--force", "--grace-period=0", "--wait=false")

    def node_of(self, component: str) -> str:
        """The node of the component's first pod."""
        return self("get", "pod", "-l", f"app.kubernetes.io/component={component}", "-o", "jsonpath={.items[0].spec.nodeName}")

    def lose_node_with_volume(self, name: str) -> str:
        """The node of a StatefulSet's server, with its disk: as an operator does it, who knows that neither comes back. The node's name."""
        node = self.node_of(name)
        self.command(self.node_off, node)
        self("delete", "node", node)
        self.lose_volume(name)
        return node

    def give_notice(self, node: str) -> None:
        """Drains the node, as on the notice of a cloud, and turns it off when it is empty or 30 s are over."""
        words = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=30s")
        self(*words, check=False)
        self.command(self.node_off, node)

    def take_back(self, node: str) -> None:
        """The node comes back, and takes pods again."""
        self.command(self.node_on, node)
        self("uncordon", node)

    def lose_volume(self, name: str) -> None:
        """The server of a StatefulSet, with its disk; a new one begins with an empty disk."""
        self("scale", "statefulset", name, "--replicas=0")
        self.kill(name)
        self("wait", "--for=delete", f"pod/{name}-0", "--timeout=120s", check=False)
        self("delete", "pvc", f"data-{name}-0", "--timeout=120s")
        self("scale", "statefulset", name, "--replicas=1")

    def client(self) -> Client:
        """A client of the gateway, by way of `forward`."""
        self.forward()
        key = self._said([sys.executable, "-m", "gradbus.deploy", "key", "--state", str(self.state)]).strip()
        return Client(f"http://127.0.0.1:{self.port}", key, RetryPolicy(10.0))

    def forward(self) -> None:
        """Forwards the port anew: kubectl keeps on forwarding to a pod that is gone."""
        self.hang_up()
        command = ["kubectl", "-n", NAMESPACE, "port-forward", "service/gateway", f"{self.port}:8080"]
        with (self.state / "port-forward.log").open("ab") as log:
            self._forward = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def hang_up(self) -> None:
        """Ends the forwarding."""
        if self._forward:
            self._forward.kill()
            self._forward.wait()
            self._forward = None

    def until(self, client: Client, run_id: str, step: int = 1 << 30) -> dict:
        """Waits until the run has published `step` or has ended."""
        return self.until_it(client, run_id, lambda run: run["progress"]["step"] >= step)

    def until_it(self, client: Client, run_id: str, condition: Callable[[dict], bool]) -> dict:
        """Waits until `condition` holds of the run, or it has ended."""
        deadline, run = time.monotonic() + RUN_SECONDS, {"state": "unknown", "waiting_for": ""}
        while time.monotonic() < deadline:
            try:
                run = document(client.run(run_id))
            except (ApiError, StackError) as error:
                run["waiting_for"] = error
                self.forward()
            else:
                if run["state"] in FINAL or condition(run):
                    return run
            time.sleep(0.5)
        raise TimeoutError(f"{run_id} is {run['state']}: {run['waiting_for']}")

    def uninstall(self) -> None:
        """Deletes all that was applied."""
        self.hang_up()
        self("delete", "deployments,statefulsets", "--all", "--cascade=foreground", "--timeout=180s", check=False, seconds=200)
        self("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s", seconds=200)
        self("delete", "priorityclass", "-l", "app.kubernetes.io/name=gradbus")

    def finished(self, client: Client, run_id: str, steps: int) -> tuple[str, str]:
        """How the run has ended, and the digest of its last version."""
        return self.until(client, run_id)["state"], document(client.versions_page(run_id, after=steps - 1))["data"][-1]["digest"]
