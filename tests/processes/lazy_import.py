"""Modules that only the process imports that uses them: every process of the tests collects all files, and an SDK takes seconds."""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def lazy_import(name: str) -> ModuleType:
    """The module, which is executed once something in it is asked for."""
    if name not in sys.modules:
        spec = find_spec(name)
        spec.loader = LazyLoader(spec.loader)
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
