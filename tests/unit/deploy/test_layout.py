"""A layout is refused with all of its faults before anything starts; what it gives a process is that process's alone."""

import pytest

from gradbus.deploy import layout as module
from gradbus.deploy.layout import check_device, check_layout, device_environment, read_layout
from gradbus.errors import StackError

EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """DeepSpeed and torch are installed, whatever this machine has."""
    monkeypatch.setattr(module, "find_spec", lambda name: name)


@pytest.fixture
def read(tmp_path):
    def from_text(text):
        (tmp_path / "layout.toml").write_text(text)
        return read_layout(tmp_path / "layout.toml")

    return from_text


def table(trainers, rollouts, reference=None):
    lines = [f"[[{role}]]\ndevices = {devices}" for role, found in (("trainers", trainers), ("rollouts", rollouts)) for devices in found]
    return "\n".join([*lines, f"[reference]\ndevices = {reference}" if reference else ""])


def test_a_worker_has_its_devices_by_its_name(read):
    layout = read(table([["cuda:0", "cuda:1"]], [["cuda:2"], ["cuda:3", "cuda:4"]]))
    assert layout.worker("trainer-0").devices == ("cuda:0", "cuda:1")
    assert layout.worker("rollout-1").devices == ("cuda:3", "cuda:4")
    assert layout.worker("reference").devices == ("cpu",)
    assert layout.worker("gateway") is None
    check_layout(layout, EIGHT)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[trainers]]\ndevices = 'cpu", "cannot be read"),
        ("[[trainers]]\ndevices = ['cpu']", "rollouts: Field required"),
        (table([[]], [["cpu"]]), r"trainers\[0\]\.devices: Tuple should have at least 1 item"),
        (table([["cpu"]], [["cpu"]]) + "\n[[rollout]]", "rollout: Extra inputs are not permitted"),
    ],
)
def test_a_table_of_another_form_is_refused_with_the_place(read, text, words):
    with pytest.raises(StackError, match=words):
        read(text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StackError, match=r"none\.toml cannot be read \(No such file or directory\); give --layout a TOML file"):
        read_layout(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("given", "environment", "words"),
    [
        ((("gpu0",), ("cpu",)), {}, "trainers[0]: no device is named gpu0; write cpu, or cuda:0"),
        ((("cuda",), ("cpu",)), {}, "trainers[0]: no device is named cuda; write cpu, or cuda:0"),
        ((("cpu", "cuda:0"), ("cpu",)), EIGHT, "trainers[0]: its devices are cpu and GPUs; give it one kind"),
        ((("cuda:1", "cuda:1"), ("cpu",)), EIGHT, "trainers[0]: cuda:1 is there twice; give each rank a GPU of its own"),
        ((("cpu",), ("cuda:8",)), EIGHT, "rollouts[0]: cuda:8 is not here, 8 GPUs are visible (CUDA_VISIBLE_DEVICES is '0,1,2"),
        ((("cpu",), ("cuda:0",)), {}, "rollouts[0]: cuda:0 is not here, 0 GPUs are visible; name one that is, or cpu"),
        ((("cpu",), ("cpu", "cpu")), {"GRADBUS_SGLANG_URL": "http://a"}, "rollouts[0]: a server that runs already"),
        ((("cpu",), ("cpu", "cpu")), {"GRADBUS_SGLANG_ARGUMENTS": '["--tp-size", "2"]'}, "GRADBUS_SGLANG_ARGUMENTS sets the number"),
    ],
)
def test_a_layout_that_cannot_work_is_refused(read, monkeypatch, tmp_path, given, environment, words):
    monkeypatch.setattr(module, "_NODES", tmp_path)
    trainer, rollout = given
    with pytest.raises(StackError) as refused:
        check_layout(read(table([list(trainer)], [list(rollout)])), environment)
    assert words in str(refused.value)


def test_all_faults_are_told_at_once(read, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(StackError) as refused:
        check_layout(read(table([["cpu", "cpu"], ["cpu"]], [["cuda:9"]], ["cpu", "cpu"])), EIGHT)
    assert str(refused.value).startswith("the layout has 4 fault(s); correct each and start again:\n  rollouts[0]: cuda:9")
    for words in ("reference: it computes on one device", "all need the same number of devices", "install gradbus[trainer-deepspeed]"):
        assert words in str(refused.value)


def test_gpus_are_counted_by_their_device_nodes_where_nothing_limits_them(read, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_NODES", tmp_path)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    check_layout(read(table([["cuda:0"]], [["cuda:1"]])), {})
    with pytest.raises(StackError, match="cuda:2 is not here, 2 GPUs"):
        check_layout(read(table([["cuda:0"]], [["cuda:2"]])), {})
    (tmp_path / "dxg").touch()
    check_layout(read(table([["cuda:0"]], [["cuda:2"]])), {})


def test_a_process_sees_its_gpus_alone_and_the_first_is_the_current_one():
    assert device_environment(("cpu", "cpu"), {}) == {"GRADBUS_DEVICE": "cpu"}
    assert device_environment(("cuda:1",), {}) == {"GRADBUS_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "1"}
    of_some = device_environment(("cuda:1", "cuda:0"), {"CUDA_VISIBLE_DEVICES": "4, GPU-5f3a"})
    assert of_some == {"GRADBUS_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "GPU-5f3a,4"}


def test_a_gpu_that_the_operator_names_by_a_number_must_be_here():
    check_device("cuda:1", EIGHT)
    check_device("cuda", {"CUDA_VISIBLE_DEVICES": ""})
    check_device("nowhere", {})
    with pytest.raises(StackError, match="GRADBUS_DEVICE: cuda:1 is not here, 1 GPUs are visible"):
        check_device("cuda:1", {"CUDA_VISIBLE_DEVICES": "3"})
