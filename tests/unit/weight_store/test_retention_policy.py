"""What retention keeps, for any history."""

from hypothesis import given
from hypothesis import strategies as st

from gradbus.v1.weights_pb2 import CheckpointManifest, WeightManifest
from gradbus_weight_store.retention import RetentionPolicy

history = st.sets(st.tuples(st.integers(0, 30), st.integers(1, 3)), min_size=1)


def checkpoints(found):
    return {
        f"{step}-{term}": CheckpointManifest(step=step, term=term, weights=WeightManifest(step=step, term=term)) for step, term in found
    }


def versions(found):
    return {f"{step}-{term}": WeightManifest(step=step, term=term, digest=f"{step}") for step, term in found}


@given(history, st.integers(1, 4), st.data())
def test_the_head_and_what_may_be_under_way_are_always_kept(found, keep, data):
    head = data.draw(st.sampled_from(sorted(found)))
    kept = RetentionPolicy(keep=keep).kept_checkpoints(checkpoints(found), head[0])
    assert {f"{step}-{term}" for step, term in found if step >= head[0]} <= set(kept)


@given(history, st.integers(1, 4), st.data())
def test_below_the_head_the_newest_steps_stay_each_with_its_newest_term(found, keep, data):
    head_step = data.draw(st.sampled_from(sorted(found)))[0]
    kept = RetentionPolicy(keep=keep).kept_checkpoints(checkpoints(found), head_step)
    below = sorted({step for step, _ in found if step < head_step}, reverse=True)[: keep - 1]
    expected = {f"{step}-{max(term for other, term in found if other == step)}" for step in below}
    assert {path for path, one in kept.items() if one.step < head_step} == expected


@given(history, st.integers(0, 30), st.integers(0, 4))
def test_no_version_a_resume_samples_with_is_deleted(found, head_step, staleness):
    kept = RetentionPolicy(max_staleness=staleness).kept_versions(versions(found), [], head_step)
    assert {one.step for one in kept.values()} == {step for step, _ in found if step >= head_step - staleness}


@given(history, st.integers(1, 5), st.integers(0, 30))
def test_versions_of_the_last_evaluations_stay(found, every, head_step):
    kept = RetentionPolicy(max_staleness=0, evaluation_every=every).kept_versions(versions(found), [], head_step)
    last = {max(0, head_step // every - back) * every for back in (0, 1)}
    assert {step for step, _ in found if step in last} <= {one.step for one in kept.values()}


def test_pinned_versions_stay_as_long_as_their_checkpoint():
    pinned = WeightManifest(step=1, digest="1")
    checkpoint = CheckpointManifest(step=2, weights=WeightManifest(step=2, digest="2"), pinned=[pinned])
    found = versions({(0, 1), (1, 1), (2, 1), (9, 1)})
    assert sorted(RetentionPolicy(max_staleness=0).kept_versions(found, [checkpoint], 9)) == ["1-1", "2-1", "9-1"]
