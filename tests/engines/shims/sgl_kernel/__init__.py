"""In place of SGLang's kernels, which are not built for CPUs: the only one that the path under test calls, in torch."""

__version__ = "0.4.7"


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    """Row `req_pool_indices[i]` of the request-to-token table takes the next cache locations, from start to end offset."""
    slots = iter(out_cache_loc.split((end_offset - start_offset).tolist()))
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = next(slots).to(req_to_token.dtype)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is not part of the stand-in under tests/engines")

    return absent
