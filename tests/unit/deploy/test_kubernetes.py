"""The manifests in deploy/kubernetes, without a cluster."""

from __future__ import annotations

import importlib
import ipaddress
import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from kubernetes_validate import utils

from gradbus.access import CALLERS
from gradbus.deploy.roles import ROLES, container_placement, role_environment
from gradbus.process.runner import DRAIN_SECONDS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
CUSTOM = {"jobset.x-k8s.io", "kueue.x-k8s.io", "keda.sh"}
"""Groups of extensions, whose schemas the cluster has."""
WORKLOADS = {"Deployment", "StatefulSet"}
SERVERS = {"nats", "buffer"}
HOSTS = {role.hostname: role for role in ROLES.values()}
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET_ACCESS|API_KEYS?$|CREDENTIALS")


@pytest.fixture(scope="module")
def manifests():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("manifests")


@pytest.fixture(scope="module", params=["", *OVERLAYS])
def objects(request, manifests):
    """What `kubectl apply -k` creates: of the base, and of each overlay."""
    return manifests.effective(request.param)


def test_the_files_are_what_the_table_of_roles_renders(manifests):
    folders = [FOLDER / part for part in ("base", "components", "overlays", "chart")]
    on_disk = {str(path.relative_to(FOLDER)): path.read_text() for folder in folders for path in folder.rglob("*.yaml")}
    assert on_disk == manifests.written(), "run python deploy/kubernetes/build.py"


@pytest.mark.skipif(shutil.which("kustomize") is None, reason="kustomize is not installed")
@pytest.mark.parametrize("overlay", ["base", *(f"overlays/{name}" for name in OVERLAYS)])
def test_kustomize_builds_the_same_objects(manifests, overlay):
    built = subprocess.run(["kustomize", "build", str(FOLDER / overlay)], capture_output=True, text=True, check=True).stdout
    ours = {identity(one): without_namespace(one) for one in manifests.effective(overlay.removeprefix("base").removeprefix("overlays/"))}
    assert {identity(one): without_namespace(one) for one in yaml.safe_load_all(built)} == ours


def test_replicas_are_spread_over_nodes_whether_or_not_the_nodes_have_zones(objects):
    """A node without the label of one constraint is ignored by all constraints of a pod, and clusters of one's own seldom label zones."""
    for one in objects:
        if one["kind"] in WORKLOADS:
            pod = one["spec"]["template"]["spec"]
            (spread,) = pod["topologySpreadConstraints"]
            assert spread["topologyKey"] == "kubernetes.io/hostname"
            assert spread["labelSelector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
            (apart,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            assert apart["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"


HELM = os.environ.get("GRADBUS_TEST_HELM_PYTHON", "")
"""An interpreter with the package helm-sdkpy, which is Helm itself and needs a newer Python than we do."""
LINT = """
import asyncio, helm_sdkpy, sys
print(asyncio.run(helm_sdkpy.Lint(helm_sdkpy.Configuration(namespace="gradbus")).run(sys.argv[1])))
"""


def helm_renders(chart, folder, **values):
    """The chart's objects. The package has no `helm template`; but where a chart is only checked, Helm logs what `fail` is told."""
    copy = shutil.copytree(chart, folder / "chart", dirs_exist_ok=True)
    template = copy / "templates/objects.yaml"
    template.write_text(template.read_text().replace("{{ tpl $objects . }}", "{{ fail (tpl $objects .) }}"))
    (copy / "values.yaml").write_text(yaml.safe_dump(yaml.safe_load((copy / "values.yaml").read_text()) | values))
    logged = subprocess.run([HELM, "-c", LINT, str(copy)], capture_output=True, text=True, check=True).stderr
    (message,) = re.findall(r'message=(".*")$', logged, re.MULTILINE)
    return {identity(one): one for one in yaml.safe_load_all(json.loads(message))}


@pytest.mark.skipif(not HELM, reason="GRADBUS_TEST_HELM_PYTHON names no interpreter with helm-sdkpy")
@pytest.mark.parametrize("profile", ["base", *OVERLAYS])
def test_helm_renders_the_same_objects(manifests, tmp_path, profile):
    ours = {identity(one): one for one in manifests.effective(profile.removeprefix("base")) if one["kind"] != "Namespace"}
    assert helm_renders(FOLDER / "chart", tmp_path, profile=profile) == ours


@pytest.mark.skipif(not HELM, reason="GRADBUS_TEST_HELM_PYTHON names no interpreter with helm-sdkpy")
def test_values_change_images_replicas_and_settings(tmp_path):
    values = {
        "registry": "registry.example/",
        "tag": "2",
        "replicas": {"rollout": 0},
        "objects": {"AWS_ENDPOINT_URL": "https://s3.example"},
    }
    found = helm_renders(FOLDER / "chart", tmp_path, **values)
    rollout = found["Deployment", "rollout"]["spec"]
    assert (rollout["replicas"], rollout["template"]["spec"]["containers"][0]["image"]) == (0, "registry.example/gradbus/rollout:2")
    where = {"AWS_ENDPOINT_URL": "https://s3.example", "AWS_REGION": "us-east-1", "GRADBUS_OBJECTS_URL": "s3://gradbus"}
    assert found["ConfigMap", "gradbus-objects"]["data"] == where


@pytest.mark.skipif(not HELM, reason="GRADBUS_TEST_HELM_PYTHON names no interpreter with helm-sdkpy")
def test_an_unknown_profile_is_refused(tmp_path):
    logged = subprocess.run([HELM, "-c", LINT, str(with_profile(tmp_path, "big"))], capture_output=True, text=True, check=True).stderr
    assert "there is no profile big; set profile to base, dev, gpu, spot, ha, ranks, kueue, keda, gvisor" in logged


def with_profile(folder, profile):
    copy = shutil.copytree(FOLDER / "chart", folder / "chart")
    (copy / "values.yaml").write_text(f"profile: {profile}\n")
    return copy


def identity(one):
    return one["kind"], one["metadata"]["name"]


def without_namespace(one):
    """As `one`, with lists whose order has no meaning in one order."""
    if isinstance(one, dict):
        return {key: without_namespace(value) for key, value in one.items() if key != "namespace"}
    if isinstance(one, list):
        return sorted((without_namespace(value) for value in one), key=written) if all(isinstance(value, dict) for value in one) else one
    return one


@pytest.fixture(scope="module")
def every_object(manifests):
    """Each different object once."""
    found = {json.dumps(one): one for overlay in ("", *OVERLAYS) for one in manifests.effective(overlay)}
    return list(found.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_has_the_form_of_kubernetes(every_object, monkeypatch, version):
    monkeypatch.setattr(utils, "schema_contents", cache(utils.schema_contents))
    for one in every_object:
        if one["apiVersion"].partition("/")[0] in CUSTOM:
            continue
        assert utils.validate(one, version, strict=True) == version, identity(one)


def written(one):
    return json.dumps(one, sort_keys=True)


def pods(objects):
    """Component to the spec of its pods."""
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects if one["kind"] in WORKLOADS}


def containers(objects):
    return [(name, one) for name, pod in pods(objects).items() for one in pod["containers"]]


def test_every_role_has_a_workload_and_every_server_with_state_a_volume(objects):
    assert pods(objects).keys() >= HOSTS.keys() | SERVERS
    claims = {one["metadata"]["name"] for one in objects if one["kind"] == "StatefulSet" and "volumeClaimTemplates" in one["spec"]}
    assert claims >= SERVERS


def test_a_container_has_the_environment_of_its_role(objects):
    maps = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}
    for host, role in HOSTS.items():
        (container,) = pods(objects)[host]["containers"]
        given = {}
        for source in container["envFrom"]:
            given |= maps[source["configMapRef"]["name"]]
        given |= {one["name"]: one.get("value") for one in container["env"]}
        assert given.items() >= role_environment(role, container_placement(role)).items(), host
        assert len(container["env"]) == len({one["name"] for one in container["env"]}), host


def test_pods_have_no_privileges_and_no_token(objects):
    for name, pod in pods(objects).items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
    for name, container in containers(objects):
        confined = container["securityContext"]
        assert (confined["allowPrivilegeEscalation"], confined["readOnlyRootFilesystem"], confined["capabilities"]) == (
            False,
            True,
            {"drop": ["ALL"]},
        ), name


def test_accounts_are_there_and_get_no_token(objects):
    accounts = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ServiceAccount"}
    assert {pod["serviceAccountName"] for pod in pods(objects).values()} == accounts.keys()
    assert all(one["automountServiceAccountToken"] is False for one in accounts.values())


def test_containers_have_requests_limits_probes_and_a_fixed_image(objects):
    for name, container in containers(objects):
        resources = container["resources"]
        assert resources["requests"].keys() >= {"cpu", "memory"}, name
        assert "memory" in resources["limits"], name
        assert "readinessProbe" in container, name
        tag = container["image"].rpartition(":")[2]
        assert re.match(r"\d", tag), container["image"]


def test_our_images_have_the_version_of_the_package(objects):
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    ours = {container["image"] for _, container in containers(objects) if container["image"].startswith("gradbus/")}
    assert {image.rpartition(":")[2] for image in ours} == {version}


def test_a_pod_is_given_the_time_that_a_drain_takes(objects):
    for host, role in HOSTS.items():
        pod = pods(objects)[host]
        waits = int(pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0])[-1])
        assert pod["terminationGracePeriodSeconds"] >= waits + DRAIN_SECONDS + 5, host
        assert bool(waits) == bool(role.serves), host


def test_every_component_has_a_budget_that_lets_nodes_be_drained(objects):
    budgets = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "PodDisruptionBudget"}
    templates = [one["spec"]["template"] for one in objects if one["kind"] in WORKLOADS]
    assert budgets.keys() == {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in templates}
    jobs = {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"] for one in objects if one["kind"] == "JobSet"}
    for name, spec in budgets.items():
        # The pods of a Job have no wanted number that a budget could subtract from: with maxUnavailable none could ever be evicted.
        amount = {"minAvailable": pods_of(jobs[name]) - 1} if name in jobs else {"maxUnavailable": 1}
        assert spec == {**amount, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": spec["selector"]}, name


def pods_of(jobset):
    return sum(one["replicas"] * one["template"]["spec"]["parallelism"] for one in jobset["replicatedJobs"])


def test_what_keeps_state_in_its_process_is_never_two_pods(objects):
    found = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Deployment"}
    for name in ("weight-store", "agent"):
        assert (found[name]["replicas"], found[name].get("strategy")) == (1, {"type": "Recreate"}), name


def test_priorities_are_there(objects):
    assert {pod["priorityClassName"] for pod in pods(objects).values()} == {
        one["metadata"]["name"] for one in objects if one["kind"] == "PriorityClass"
    }


def test_secrets_are_referred_to_and_in_no_object(objects):
    assert not any(one["kind"] == "Secret" for one in objects)
    for host in HOSTS:
        volumes = {one["name"]: one for one in pods(objects)[host]["volumes"]}
        assert volumes["secrets"]["secret"]["secretName"] == f"gradbus-{host}"
    for name, container in containers(objects):
        assert [one["name"] for one in container.get("env", []) if SECRET.search(one["name"])] == [], name


def allowed(objects):
    """(caller, server, port) of every pair of components that the policies let through in both directions."""
    rules = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    names = {*HOSTS, *SERVERS, "objects"}
    out = {pair for rule in rules for pair in pairs(rule, "egress", "to", names)}
    into = {(caller, server, port) for rule in rules for server, caller, port in pairs(rule, "ingress", "from", names)}
    return out & into


def pairs(rule, direction, side, names):
    for one in rule.get(direction, ()):
        for peer in one.get(side, ()):
            for port in one.get("ports", [{"port": 0}]):
                for this in selected(rule["podSelector"], names):
                    for that in selected(peer.get("podSelector"), names):
                        yield this, that, port["port"]


def selected(selector, names):
    if selector is None:
        return set()
    component = selector.get("matchLabels", {}).get("app.kubernetes.io/component")
    among = [value for one in selector.get("matchExpressions", ()) for value in one["values"]]
    return {component} if component else set(among) if among else names


def test_policies_let_exactly_the_wires_through(objects):
    hosts = {role.name: role.hostname for role in ROLES.values()}
    wires = {(hosts[caller], hosts[server], 50051) for server, callers in CALLERS.items() for caller in callers}
    wires |= {(role.hostname, "nats", 4222) for role in ROLES.values() if role.uses_nats}
    wires |= {(role.hostname, "buffer", 6379) for role in ROLES.values() if role.uses_buffer}
    wires |= {("trainer", "rollout", 0), ("rollout", "trainer", 0), ("rollout", "rollout", 0)}
    if "objects" in pods(objects):
        wires |= {(role.hostname, "objects", 8333) for role in ROLES.values() if role.stores_objects}
    names = {one["metadata"]["name"] for one in objects if one["kind"] == "NetworkPolicy"}
    wires |= {("nats", "nats", 6222)} if "nats-peers" in names else set()
    wires |= {("trainer", "trainer", 0)} if "trainer-ranks" in names else set()
    assert allowed(objects) == wires


def test_nothing_is_allowed_by_default_and_no_rule_is_for_every_pod(objects):
    rules = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "NetworkPolicy"}
    assert rules.pop("default-deny") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert all(one["podSelector"] for one in rules.values())
    open_to_all = {name for name, one in rules.items() for rule in one.get("ingress", ()) if "from" not in rule}
    assert open_to_all == {"gateway", "agent"}


def reached(rule, address):
    """Protocols and ports of an address outside the cluster's pods that an egress rule lets through; None: all."""
    blocks = [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]
    covered = [one for one in blocks if within(address, one["cidr"]) and not any(within(address, cidr) for cidr in one.get("except", ()))]
    return {(port["protocol"], port["port"]) for port in rule["ports"]} if covered and "ports" in rule else {None} if covered else set()


def within(address, cidr):
    return ipaddress.ip_address(address) in ipaddress.ip_network(cidr)


def test_names_are_asked_at_the_node_too_and_its_other_ports_are_closed(objects):
    cache, metadata = "169.254.20.10", "169.254.169.254"
    names = {("UDP", 53), ("TCP", 53)}
    rules = [one["spec"] for one in objects if one["kind"] == "NetworkPolicy"]
    for address in (cache, metadata):
        for host in HOSTS:
            mine = [rule for one in rules if host in selected(one["podSelector"], set(HOSTS)) for rule in one.get("egress", ())]
            assert set().union(*(reached(rule, address) for rule in mine)) == names, (address, host)


def test_servers_answer_under_the_names_of_their_certificates(objects):
    services = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Service"}
    served = {role.hostname: role.port for role in ROLES.values() if role.serves} | {"nats": 4222, "buffer": 6379}
    assert {name: services[name]["ports"][0]["port"] for name in served} == served


def test_what_is_several_is_several_and_the_servers_of_nats_share_no_node(manifests):
    found = {one["metadata"]["name"]: one["spec"] for one in manifests.effective("ha") if one["kind"] in WORKLOADS}
    assert [found[name]["replicas"] for name in ("nats", "gateway", "conductor", "reward")] == [3, 3, 3, 3]
    apart = found["nats"]["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart == [{"topologyKey": "kubernetes.io/hostname", "labelSelector": found["nats"]["selector"]}]


def test_a_spot_worker_ends_within_the_notice_and_runs_on_spot_nodes_alone(manifests):
    pod = pods(manifests.effective("spot"))["rollout-spot"]
    assert pod["terminationGracePeriodSeconds"] <= 30
    assert "nodeAffinity" in pod["affinity"]


def test_a_worker_on_a_gpu_asks_for_one_and_has_no_limit_of_allocations(manifests):
    for name in ("trainer", "rollout", "reference"):
        (container,) = pods(manifests.effective("gpu"))[name]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert (variables["GRADBUS_DEVICE"], "GRADBUS_MEMORY_LIMIT" in variables) == ("cuda", False)


def test_what_executes_users_code_is_in_gvisor_and_says_so(manifests):
    classes = {name: pod.get("runtimeClassName") for name, pod in pods(manifests.effective("gvisor")).items()}
    assert {name for name, given in classes.items() if given} == {"environment", "reward"}
    assert {given for given in classes.values() if given} == {"gvisor"}
    (container,) = pods(manifests.effective("gvisor"))["environment"]["containers"]
    assert {"name": "GRADBUS_IN_GVISOR", "value": "true"} in container["env"]


def test_ranks_differ_by_their_number_alone_and_meet_at_the_first(manifests):
    objects = {identity(one): one for one in manifests.effective("ranks")}
    assert objects["Deployment", "trainer"]["spec"]["replicas"] == 0
    (container,) = objects["StatefulSet", "trainer-ranks"]["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["WORLD_SIZE"] == str(objects["StatefulSet", "trainer-ranks"]["spec"]["replicas"])
    assert variables["MASTER_ADDR"] == "trainer-ranks-0." + objects["Service", "trainer-ranks"]["metadata"]["name"]
    shown = ["sh", "-c", container["command"][-1].replace("exec python", "env #")]
    said = subprocess.run(shown, env={"POD_NAME": "trainer-ranks-1"}, capture_output=True, text=True, check=True)
    assert "RANK=1" in said.stdout.split()


def test_workers_are_scaled_by_a_metric_that_there_is(manifests):
    (scaled,) = (one for one in manifests.effective("keda") if one["kind"] == "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    used = (ROOT / "deploy/grafana/dashboards").glob("*.json")
    assert any("gradbus_groups_waiting" in path.read_text() for path in used)
    assert "gradbus_groups_waiting" in query
