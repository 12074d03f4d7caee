"""RMSNorm, rotary embedding and SwiGLU: values and gradients against their plain formulas in float64, every implementation alike."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gradbus_kernels.operators import provenance, using
from gradbus_kernels.operators.base import block_sizes
from gradbus_kernels.operators.decoder_layer.head_norm import HeadNorms, normed_rotary, normed_rotary_reference
from gradbus_kernels.operators.decoder_layer.norm import rms_norm, rms_norm_in_float32, rms_norm_reference
from gradbus_kernels.operators.decoder_layer.rotary import Rotation, rotary, rotary_reference
from gradbus_kernels.operators.decoder_layer.swiglu import geglu, geglu_reference, swiglu, swiglu_reference

ROOM = {torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float64: 1e-12}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def randn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def turn(dtype, tokens=7, heads=4):
    return Rotation.of_angles(randn(tokens, 3, seed=8), 1.3, heads, dtype)


def norm(x, weight):
    return rms_norm(x, weight, 1e-5)


def plain_norm(x, weight):
    return rms_norm_reference(x, weight, 1e-5)


def wide_norm(x, weight):
    return rms_norm_in_float32(x, weight, 1e-5, 1.0)


def plain_wide_norm(x, weight):
    return (1.0 + weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def turned(operation, key_heads, repeated=True):
    """All heads after the operation, side by side."""

    def call(qkv):
        rotation = turn(qkv.dtype, len(qkv), qkv.shape[1] - key_heads if repeated else 1)
        return torch.cat(operation(qkv, Rotation(*(part.to(qkv.device) for part in rotation)), key_heads), dim=1)

    return call


def normed(operation, repeated=True):
    """All heads after the operation on heads that are normalised first."""

    def call(qkv, query, key):
        return turned(lambda heads, rotation, count: operation(heads, HeadNorms(query, key, 1e-5), rotation, count), 2, repeated)(qkv)

    return call


HEADS = [randn(13, 7, 6) * 3, randn(6, seed=1), randn(6, seed=2)]
OPERATIONS = {
    "norm": (norm, plain_norm, [randn(7, 37) * 3, randn(37, seed=1)], (7, 37)),
    "norm of heads": (norm, plain_norm, [randn(30, 3, 16) * 3, randn(16, seed=1)], (30, 3, 16)),
    "norm of wide rows": (norm, plain_norm, [randn(3, 2100) * 3, randn(2100, seed=1)], (3, 2100)),
    "rotary": (turned(rotary, 2), turned(rotary_reference, 2), [randn(7, 8, 6)], (7, 8, 6)),
    "rotary of grouped queries": (turned(rotary, 1), turned(rotary_reference, 1), [randn(7, 5, 6)], (7, 5, 6)),
    "rotary by one turn": (turned(rotary, 2, repeated=False), turned(rotary_reference, 2), [randn(7, 6, 6)], (7, 6, 6)),
    "normed_rotary": (normed(normed_rotary), normed(normed_rotary_reference), HEADS, (13, 7, 6)),
    "normed_rotary by one turn": (normed(normed_rotary, False), normed(normed_rotary_reference), HEADS, (13, 7, 6)),
    "swiglu": (swiglu, swiglu_reference, [randn(7, 38) * 3], (7, 19)),
    "swiglu of wide rows": (swiglu, swiglu_reference, [randn(3, 2100) * 3], (3, 1050)),
}
ALL = OPERATIONS | {
    "rms_norm_in_float32": (wide_norm, plain_wide_norm, [randn(7, 37) * 3, randn(37, seed=1)], (7, 37)),
    "geglu": (geglu, geglu_reference, [randn(7, 38) * 3], (7, 19)),
}
"""With those whose path on a CPU is autograd's, of torch's operations."""


def gradients(function, inputs, upstream):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream.to(out))]


@pytest.fixture
def few_programs(monkeypatch):
    """Sums over rows are divided among three programs."""
    if find_spec("triton") is not None:
        kernels = "gradbus_kernels.operators.decoder_layer.triton"
        few = {"rows": 2, "programs": 3}
        monkeypatch.setattr(f"{kernels}.norm.norm_rows", lambda width: replace(block_sizes.norm_rows(width), **few))
        monkeypatch.setattr(f"{kernels}.head_norm.rotary_tokens", lambda pairs: replace(block_sizes.rotary_tokens(pairs), **few))


def held_to_the_formula(name, dtype, device):
    operation, reference, inputs, shape = ALL[name]
    upstream = randn(*shape, seed=3)
    found = gradients(operation, [tensor.to(device, dtype) for tensor in inputs], upstream)
    with using("reference"):
        expected = gradients(reference, inputs, upstream)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert float((one.double().cpu() - other).abs().max()) <= ROOM[dtype] * (1.0 + float(other.abs().max()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ROOM)
@pytest.mark.parametrize("name", OPERATIONS)
def test_value_and_gradients_are_those_of_the_formula(name, dtype, device):
    held_to_the_formula(name, dtype, device)


@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ALL)
def test_every_implementation_computes_the_formula(name, implementation, dtype):
    held_to_the_formula(name, dtype, "cpu")
    assert provenance()[{"norm": "rms_norm"}.get(name.split()[0], name.split()[0])].implementation == implementation


@pytest.mark.usefixtures("few_programs", "implementation")
@pytest.mark.parametrize("name", ALL)
def test_every_element_is_written_and_twice_to_the_same_bits(name, monkeypatch):
    operation, _, inputs, shape = ALL[name]
    inputs, upstream = [tensor.bfloat16() for tensor in inputs], randn(*shape, seed=3)
    once = gradients(operation, inputs, upstream)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # new memory is then filled with NaN
    try:
        again = gradients(operation, inputs, upstream)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed; pip install triton")
@pytest.mark.parametrize("name", sorted(ALL.keys() - {"geglu"}))  # whose tails torch computes with fewer digits
def test_triton_rounds_where_torch_rounds(name):
    """Almost all bits are the same. In float16, because Triton's interpreter cuts bfloat16 off."""
    operation, _, inputs, shape = ALL[name]
    inputs, upstream = [tensor.half() for tensor in inputs], randn(*shape, seed=3)
    found = []
    for implementation in ("triton", "cpu"):
        with using(implementation):
            found.append(gradients(operation, inputs, upstream))
    for one, other in zip(*found, strict=True):
        assert float((one != other).float().mean()) < 0.02


@pytest.mark.usefixtures("implementation")
def test_no_rows_are_no_work():
    for call in (
        lambda x: rms_norm(x, torch.ones(6), 1e-5),
        swiglu,
        lambda x: rotary(x[:, None].expand(0, 3, 6), turn(x.dtype, 0, 1), 1)[0],
    ):
        x = torch.ones(0, 6, requires_grad=True)
        call(x).sum().backward()
        assert x.grad.shape == (0, 6)


@pytest.mark.usefixtures("implementation")
def test_a_part_of_wider_rows_is_taken_as_it_stands():
    wide = randn(7, 6, 12).float()
    rotation = Rotation(*(part[:, :1] for part in turn(torch.float32, heads=1)))
    for one, other in zip(rotary(wide[..., 3:9], rotation, 2), rotary(wide[..., 3:9].contiguous(), rotation, 2), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(norm(wide[..., 3:9], torch.ones(6)), norm(wide[..., 3:9].contiguous(), torch.ones(6)))
    torch.testing.assert_close(swiglu(wide[..., 3:9]), swiglu(wide[..., 3:9].contiguous()))


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_the_slopes_of_the_value(name):
    operation, _, inputs, _ = OPERATIONS[name]
    assert torch.autograd.gradcheck(operation, [tensor.clone().requires_grad_() for tensor in inputs], fast_mode=True)


@pytest.mark.parametrize("name", OPERATIONS)
def test_layers_computed_again_give_the_same_bits(name):
    operation, _, inputs, shape = OPERATIONS[name]
    inputs, upstream = [tensor.float() for tensor in inputs], randn(*shape, seed=3)
    again = gradients(lambda *parts: checkpoint(operation, *parts, use_reentrant=False), inputs, upstream)
    assert all(torch.equal(one, other) for one, other in zip(gradients(operation, inputs, upstream), again, strict=True))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("frozen", [0, 1])
def test_the_norm_differentiates_what_is_trained(frozen):
    inputs = [randn(5, 6).float(), randn(6, seed=1).float()]
    trained = inputs[1 - frozen].requires_grad_()
    (one,), (other,) = (torch.autograd.grad(function(*inputs).sum(), trained) for function in (norm, plain_norm))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: norm(torch.ones(2, 3), torch.ones(2)), r"weight: has shape \(2,\); pass \(3\)"),
        (lambda: rms_norm(torch.ones(2, 3), torch.ones(3), -1.0), "eps: is -1.0; pass 0 or more"),
        (lambda: rotary(torch.ones(7, 5, 6), turn(torch.float32), 2), "rotation.cos: is for 4 heads; pass one for 1 or 3"),
        (lambda: rotary(torch.ones(7, 6, 6), turn(torch.float64), 2), "rotation.cos: is torch.float64; pass torch.float32 like qkv"),
        (lambda: rotary(torch.ones(7, 6, 6), turn(torch.float32), 3), "key_heads: is 3; pass 1 to 2, so that queries are left"),
        (lambda: rotary(torch.ones(7, 6, 5), turn(torch.float32), 2), "qkv: has heads of 5 elements; pass an even number, which are pairs"),
        (
            lambda: normed_rotary(torch.ones(7, 6, 6), HeadNorms(torch.ones(6), torch.ones(5), 1e-5), turn(torch.float32), 2),
            r"norms.key: has shape \(5,\); pass \(6\)",
        ),
        (
            lambda: normed_rotary(torch.ones(7, 6, 6), HeadNorms(torch.ones(6), torch.ones(6), -1.0), turn(torch.float32), 2),
            "norms.eps: is -1.0; pass 0 or more",
        ),
        (
            lambda: normed_rotary(torch.ones(7, 6, 6), HeadNorms(torch.ones(6), torch.ones(6), 1e-5, "offset"), turn(torch.float32), 2),
            "norms.kind: is offset; pass llama, or norm and rotate one after the other",
        ),
        (lambda: swiglu(torch.ones(2, 3)), "gate_up: has rows of 3; pass as many ups as gates"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
