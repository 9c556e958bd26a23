import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from spindle_sim.cluster import GPUS, Cluster
from spindle_sim.errors import InputError
from spindle_sim.estimate import Estimator, load_profile, profile_schema, save_profile
from spindle_sim.estimate.profile import (
    LinkPoint,
    OperatorPoint,
    Profile,
    ProfiledOperator,
    ProfileProvenance,
    dump_profile,
    parse_profile,
)
from spindle_sim.plan import Backward
from spindle_sim.workload import Custom, Gemm, OperatorNode, TransformerLayer

LAYER = TransformerLayer(width=1024, heads=16, mlp_width=4096)
PROFILE = Profile(
    format_version="1.0",
    name="box-1",
    provenance=ProfileProvenance(
        device="A100-SXM4-80GB",
        source="one layer, timed for this test",
        date="2026-11-30",
        kind="measured",
        tool="by hand",
    ),
    operators=(
        ProfiledOperator(
            operator=LAYER,
            tokens=77,
            points=(
                OperatorPoint(samples=16, forward_s=4e-3, backward_s=9e-3, input_backward_s=5e-3),
                OperatorPoint(samples=4, forward_s=2e-3, backward_s=5e-3, input_backward_s=3e-3),
            ),
        ),
        ProfiledOperator(
            operator=Custom(name="stem", parameters=10, gemms=(Gemm(rows=3, inner=5, columns=7),)),
            tokens=1,
            points=(OperatorPoint(samples=1, forward_s=1e-3, backward_s=1e-3),),
        ),
    ),
    links=(
        LinkPoint(operation="all_reduce", reach="island", ranks=8, size_bytes=1e6, time_s=1e-4),
    ),
)
CLUSTER = Cluster(
    name="box",
    gpu=GPUS["a100"],
    num_nodes=1,
    devices_per_node=8,
    island_size=8,
    nics_per_node=1,
    nic_bandwidth_bytes_per_s=50e9,
)
NODE = OperatorNode(
    task="task",
    use="use",
    module="module",
    block="block",
    index=0,
    operator=LAYER,
    tokens=77,
    context_tokens=0,
    items=1,
    batch_size=32,
)


def mistakes(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_profile(text, "box.json")
    return [str(problem) for problem in caught.value.problems]


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(dump_profile(PROFILE)), **fields})


def test_a_saved_profile_loads_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    save_profile(PROFILE, path)
    assert load_profile(path) == PROFILE
    assert load_profile(path).sha256 == PROFILE.sha256


def test_a_profile_fits_its_published_schema() -> None:
    jsonschema.validate(json.loads(dump_profile(PROFILE)), profile_schema())


def test_the_published_schema_is_current(golden: Callable[[str, str], None]) -> None:
    text = json.dumps(profile_schema(), indent=2, sort_keys=True) + "\n"
    golden("../../schemas/profile.schema.json", text)


def test_profiled_points_are_used_as_they_are() -> None:
    curve = Estimator(CLUSTER, PROFILE).curve(NODE, Backward.FULL)
    assert (curve.forward_s(2), curve.backward_s(2)) == (4e-3, 9e-3)
    assert (curve.forward_s(8), curve.backward_s(8)) == (2e-3, 5e-3)


def test_between_points_the_time_is_linear_in_the_samples_of_a_device() -> None:
    curve = Estimator(CLUSTER, PROFILE).curve(NODE, Backward.FULL)
    assert curve.forward_s(4) == pytest.approx(2e-3 + (8 - 4) / (16 - 4) * 2e-3)


def test_beyond_the_points_the_device_model_is_scaled_to_the_nearest() -> None:
    estimator = Estimator(CLUSTER, PROFILE)
    model = estimator.compute
    ratio = model.forward_s(NODE.cost, 32) / model.forward_s(NODE.cost, 16)
    assert estimator.curve(NODE, Backward.FULL).forward_s(1) == pytest.approx(4e-3 * ratio)


def test_a_known_part_of_the_backward_is_used_and_an_unknown_one_is_shared_out() -> None:
    estimator = Estimator(CLUSTER, PROFILE)
    assert estimator.curve(NODE, Backward.INPUT_ONLY).backward_s(2) == 5e-3
    model = estimator.compute
    share = model.backward_s(NODE.cost, 16, Backward.WEIGHT_ONLY) / model.backward_s(
        NODE.cost, 16, Backward.FULL
    )
    found = estimator.curve(NODE, Backward.WEIGHT_ONLY).backward_s(2)
    assert found == pytest.approx(9e-3 * share)
    assert estimator.curve(NODE, Backward.NONE).backward_s(2) == 0.0


def test_other_operators_keep_the_device_model_and_the_estimator_says_which() -> None:
    estimator, plain = Estimator(CLUSTER, PROFILE), Estimator(CLUSTER)
    other = replace(NODE, tokens=78)
    assert estimator.curve(other, Backward.FULL) == plain.curve(other, Backward.FULL)
    assert estimator.provenance(NODE) == "measured box-1"
    assert estimator.provenance(other) == "analytic model a100-1"
    assert estimator.provenance(NODE, tp=2) == "analytic model a100-1"
    assert estimator.profile_name.startswith("measured box-1, elsewhere analytic model a100-1")
    assert estimator.profile_hash != plain.profile_hash


def test_a_profile_may_be_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    save_profile(PROFILE, path)
    assert Estimator(CLUSTER, str(path)).curve(NODE, Backward.FULL).forward_s(2) == 4e-3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: can't be read: no such file"):
        load_profile(tmp_path / "none.json")


def test_another_version_is_refused() -> None:
    (found,) = mistakes(changed(format_version="2.0"))
    assert found == 'box.json: format_version: is "2.0"; this program reads "1.1"'


def test_what_is_no_json_is_refused() -> None:
    (found,) = mistakes("{")
    assert "is no JSON" in found


def test_a_plan_is_told_as_such_in_one_line() -> None:
    (found,) = mistakes('{"format_version": "1.1", "slices": [], "metaops": []}')
    assert "is a plan, not a profile" in str(found)


def test_every_wrong_field_is_named_at_once() -> None:
    document = json.loads(dump_profile(PROFILE))
    document["operators"][0]["points"][1]["forward_s"] = "fast"
    del document["operators"][1]["tokens"]
    document["colour"] = "red"
    found = "\n".join(mistakes(json.dumps(document)))
    assert "operators[0].points[1].forward_s" in found
    assert "operators[1].tokens: is missing" in found
    assert "colour" in found


def test_every_broken_rule_is_named_at_once() -> None:
    document = json.loads(dump_profile(PROFILE))
    document["operators"][0]["points"][0]["samples"] = 0.0
    document["operators"][1]["points"] = []
    document["operators"].append(document["operators"][0])
    document["links"][0]["time_s"] = -1.0
    found = "\n".join(mistakes(json.dumps(document)))
    assert "operators[0].points[0]: samples and every time must be positive" in found
    assert "operators[1].points: needs at least one point" in found
    assert "operators[2]: is given twice" in found
    assert "links[0]" in found
