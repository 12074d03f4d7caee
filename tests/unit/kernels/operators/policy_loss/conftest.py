"""All variants of the loss, as a strategy of hypothesis."""

import pytest
from hypothesis import strategies as st

from gradbus_kernels.operators import Curves, PolicySettings

REGIONS = ("clip", "log_clip", "cap", "band", "mass", "soft", "gamma", "none")
SEQUENCE_REGIONS = {"clip", "log_clip", "gamma", "none"}


@st.composite
def all_settings(draw):
    region = draw(st.sampled_from(REGIONS))
    levels = ("token", "sequence", "product") if region in SEQUENCE_REGIONS else ("token",)
    bound = st.floats(0.01, 0.1) if region == "mass" else st.floats(0.05, 0.9)
    pairs = st.tuples(st.floats(0.5, 3.0), st.floats(0.5, 3.0))
    return PolicySettings(
        trust_region=region,
        low=draw(bound),
        high=draw(bound),
        dual=draw(st.sampled_from([None, 1.2, 3.0])) if region == "clip" else None,
        curves=Curves(draw(pairs), draw(st.tuples(pairs, pairs))),
        importance=draw(st.sampled_from(["behaviour", "decoupled", "none"])),
        ratio=draw(st.sampled_from(levels)),
        sequence_mask=draw(st.sampled_from([None, (0.9, 1.1), (0.5, 1.5)])),
        off_policy_mask=draw(st.sampled_from([None, 0.0, 0.2])),
        kl=draw(st.sampled_from([0.0, 0.1])),
        kl_estimator=draw(st.sampled_from(["k2", "k3", "unbiased"])),
        drift=draw(st.sampled_from([0.0, 0.05])),
        nll=draw(st.sampled_from([0.0, 0.1])),
        entropy=draw(st.sampled_from([0.0, 0.02])),
    )


@pytest.fixture(scope="session")
def any_settings():
    """Settings with every combination of the axes that is allowed."""
    return all_settings()


@pytest.fixture(params=REGIONS)
def region(request):
    return request.param
