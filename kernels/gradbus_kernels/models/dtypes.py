"""torch's dtypes by the spec's names."""

from __future__ import annotations

from typing import Final

import torch

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
