"""A real SGLang server behind `Engine`, over HTTP: launched by the worker, or attached to.

engine    the face: `Engine`                    sampler   groups and samples in flight
recovery  the server up again after a failure   loader    whole weights, or base and adapters
partial_sample   one sample, reply by reply     installer one set of weights, with proof
version_folders  folders of the versions loaded loaded_adapters  adapters on the server, by name
adapters  the folder of a version of adapters   config    the run's part and the worker's settings
routes    experts of one sample's tokens
server    launched or attached to               api       the server's routes, with deadlines
launched_server  the processes between a start and a stop
"""

from __future__ import annotations

from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.engine import SGLangEngine

__all__ = ["SGLangConfig", "SGLangEngine", "SGLangSettings"]
