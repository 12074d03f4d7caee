"""Python loads this first when the folder is on PYTHONPATH. It fills gaps of SGLang on a machine without a GPU.

A torchvision that was built for CUDA is imported beside a torch that was not: it decorates two operators whose definitions
its CUDA library would bring. And SGLang's weight checker moves what it compares to the GPU, and its LoRA and its buffer of routes pin
memory for one: here all stays where it is; with GRADBUS_TEST_CUDA_CHECKER the checker goes for the GPU after all, and fails.
"""

import os
import sys
from importlib.abc import MetaPathFinder

_kept = []  # torch forgets a library's definitions when the library is collected


class _BeforeTorchvision(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _fill_gaps()


def _fill_gaps():
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
    torch.Tensor.pin_memory = lambda tensor, *_args, **_kwargs: tensor
    torch.cuda.cudart = _Runtime
    if not os.environ.get("GRADBUS_TEST_CUDA_CHECKER"):
        torch.Tensor.cuda = torch.Tensor.pin_memory
    for maker in ("tensor", "empty", "zeros"):
        setattr(torch, maker, _unpinned(getattr(torch, maker)))


class _Runtime:
    def cudaHostRegister(self, *_args):  # noqa: N802 - the name of CUDA's function
        return 0


def _unpinned(make):
    def unpinned(*args, **kwargs):
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return unpinned


sys.meta_path.insert(0, _BeforeTorchvision())
