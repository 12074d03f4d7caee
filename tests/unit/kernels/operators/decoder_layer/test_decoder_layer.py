"""RMSNorm, rotary embedding and SwiGLU: values and gradients against their plain formulas in float64."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gradbus_kernels.operators.decoder_layer.norm import rms_norm, rms_norm_reference
from gradbus_kernels.operators.decoder_layer.rotary import Rotation, rotary, rotary_reference
from gradbus_kernels.operators.decoder_layer.swiglu import swiglu, swiglu_reference

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


def turned(operation, key_heads, repeated=True):
    """All heads after the operation, side by side."""

    def call(qkv):
        rotation = turn(qkv.dtype, heads=qkv.shape[1] - key_heads if repeated else 1)
        return torch.cat(operation(qkv, Rotation(*(part.to(qkv.device) for part in rotation)), key_heads), dim=1)

    return call


OPERATIONS = {
    "norm": (norm, plain_norm, [randn(7, 37) * 3, randn(37, seed=1)], (7, 37)),
    "rotary": (turned(rotary, 2), turned(rotary_reference, 2), [randn(7, 8, 6)], (7, 8, 6)),
    "rotary of grouped queries": (turned(rotary, 1), turned(rotary_reference, 1), [randn(7, 5, 6)], (7, 5, 6)),
    "rotary by one turn": (turned(rotary, 2, repeated=False), turned(rotary_reference, 2), [randn(7, 6, 6)], (7, 6, 6)),
    "swiglu": (swiglu, swiglu_reference, [randn(7, 38) * 3], (7, 19)),
}


def gradients(function, inputs, upstream):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream.to(out))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ROOM)
@pytest.mark.parametrize("name", OPERATIONS)
def test_value_and_gradients_are_those_of_the_formula(name, dtype, device):
    operation, reference, inputs, shape = OPERATIONS[name]
    upstream = randn(*shape, seed=3)
    found = gradients(operation, [tensor.to(device, dtype) for tensor in inputs], upstream)
    for one, other in zip(found, gradients(reference, inputs, upstream), strict=True):
        assert one.dtype == dtype
        assert float((one.double().cpu() - other).abs().max()) <= ROOM[dtype] * (1.0 + float(other.abs().max()))


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_the_slopes_of_the_value(name):
    operation, _, inputs, _ = OPERATIONS[name]
    assert torch.autograd.gradcheck(operation, [tensor.clone().requires_grad_() for tensor in inputs])


@pytest.mark.parametrize("name", OPERATIONS)
def test_layers_computed_again_give_the_same_bits(name):
    operation, _, inputs, shape = OPERATIONS[name]
    inputs, upstream = [tensor.float() for tensor in inputs], randn(*shape, seed=3)
    again = gradients(lambda *parts: checkpoint(operation, *parts, use_reentrant=False), inputs, upstream)
    assert all(torch.equal(one, other) for one, other in zip(gradients(operation, inputs, upstream), again, strict=True))


@pytest.mark.parametrize("frozen", [0, 1])
def test_the_norm_differentiates_what_is_trained(frozen):
    inputs = [randn(5, 6), randn(6, seed=1)]
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
        (lambda: swiglu(torch.ones(2, 3)), "gate_up: has rows of 3; pass as many ups as gates"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
