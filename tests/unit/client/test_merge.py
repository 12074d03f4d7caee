"""An export adds adapters to the base's files as the trainer's kernels do, without torch."""

import builtins

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradbus.client.merge import check_mergeable, write_merged
from gradbus.errors import ModelError, StackError
from gradbus.formats.peft import adapter_shapes
from gradbus.spec import LoraSpec
from gradbus_kernels.models.lora import merged_weights

LORA = LoraSpec(rank=2, alpha=3.0, target_modules=("q_proj", "down_proj"))
BASE = {
    "model.embed_tokens.weight": (7, 4),
    "model.layers.0.self_attn.q_proj.weight": (6, 4),
    "model.layers.0.self_attn.q_proj.bias": (6,),
    "model.layers.0.mlp.down_proj.weight": (4, 5),
}


@pytest.fixture
def adapters(tmp_path):
    torch.manual_seed(2)
    save_file({name: torch.randn(shape) for name, shape in adapter_shapes(BASE, LORA).items()}, tmp_path / "adapters")
    return tmp_path / "adapters"


@pytest.fixture
def write(tmp_path):
    """The base in two files."""
    (tmp_path / "out").mkdir()

    def to_files(dtype):
        torch.manual_seed(1)
        tensors = {name: torch.randn(shape).to(dtype) for name, shape in BASE.items()}
        files = [tmp_path / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        for file, names in zip(files, (list(BASE)[:2], list(BASE)[2:]), strict=True):
            save_file({name: tensors[name] for name in names}, file)
        return tensors, files

    return to_files


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("published", [torch.float32, torch.bfloat16])
def test_the_sum_is_the_kernels_in_float32_file_by_file(write, adapters, tmp_path, dtype, published):
    base, files = write(dtype)
    save_file({name: tensor.to(published) for name, tensor in load_file(adapters).items()}, adapters)
    write_merged(files, adapters, LORA.scale, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {file.name for file in files}
    for file in files:
        written = load_file(tmp_path / "out" / file.name)
        assert written.keys() == load_file(file).keys()
        expected = {name: weight for name, weight, _ in merged_weights(base.items(), load_file(adapters), LORA.scale)}
        for name, tensor in written.items():
            assert tensor.dtype == torch.float32
            torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-6)
            assert torch.equal(tensor, base[name].float()) == ("q_proj.weight" not in name and "down_proj" not in name)


def test_tensors_that_no_run_trains_keep_their_dtype_and_bits(write, adapters, tmp_path):
    _, files = write(torch.bfloat16)
    frozen = {"mtp.w": torch.randn(3, 2).to(torch.bfloat16), "visual.index": torch.arange(4)}
    save_file(load_file(files[1]) | frozen, files[1])
    write_merged(files, adapters, LORA.scale, tmp_path / "out")
    written = load_file(tmp_path / "out" / files[1].name)
    assert {name: tensor.dtype for name, tensor in written.items() if name not in frozen} == dict.fromkeys(list(BASE)[2:], torch.float32)
    assert all(written[name].dtype == tensor.dtype and torch.equal(written[name], tensor) for name, tensor in frozen.items())


def test_adapters_of_another_model_are_refused(write, adapters, tmp_path):
    _, files = write(torch.float32)
    with pytest.raises(ModelError, match="of the adapters belong to no weight"):
        write_merged(files[:1], adapters, LORA.scale, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_that_are_no_floats_are_refused(write, adapters, tmp_path):
    _, files = write(torch.int64)
    with pytest.raises(ModelError, match="has dtype I64, into which adapters are not merged; export them with --adapters"):
        write_merged(files, adapters, LORA.scale, tmp_path / "out")


def test_without_numpy_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "numpy":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StackError, match="pip install numpy"):
        check_mergeable()
