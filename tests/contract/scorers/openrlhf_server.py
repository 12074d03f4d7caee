"""OpenRLHF's own reward server, `openrlhf.cli.serve_rm`, around a reward that needs no model: `python openrlhf_server.py PORT`.

Its handler, its batching and its JSON are the package's; only the loaders of models and tokenizers are replaced, which want a GPU.
"""

import importlib.util
import runpy
import sys
import types

import torch


class Tokens(list):
    def to(self, _device):
        return self


class Length(torch.nn.Module):
    """Scores a text by its number of characters."""

    device = torch.device("cpu")

    def forward(self, texts, _mask):
        return torch.tensor([float(len(text)) for text in texts])


def tokenize(texts, **_settings):
    return {"input_ids": Tokens(texts), "attention_mask": Tokens()}


def main(port: str) -> None:
    (root,) = importlib.util.find_spec("openrlhf").submodule_search_locations
    loaders = {
        "models": {"get_llm_for_sequence_regression": lambda *_arguments, **_settings: Length()},
        "utils": {"get_tokenizer": lambda *_arguments, **_settings: tokenize},
    }
    for name, values in loaders.items():
        module = types.ModuleType(f"openrlhf.{name}")
        module.__path__ = [f"{root}/{name}"]  # its other modules are the package's own
        vars(module).update(values)
        sys.modules[module.__name__] = module
    sys.argv = ["serve_rm", "--port", port, "--host", "127.0.0.1", "--batch_size", "2"]
    runpy.run_module("openrlhf.cli.serve_rm", run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
