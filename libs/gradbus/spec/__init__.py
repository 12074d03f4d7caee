"""The run spec: REST body, TOML file, JSON Schema and documentation in one model."""

from gradbus.spec.algorithm import AlgorithmSpec, Whiten
from gradbus.spec.faults import MAX_FAULTS, parse_spec, refuse_unstorable
from gradbus.spec.kinds import PAIR_KINDS, Kind, PreferenceSpec
from gradbus.spec.presets import PRESETS
from gradbus.spec.run import RunSpec
from gradbus.spec.sections import (
    CheckpointSpec,
    CriticSpec,
    DataSpec,
    DeepSpeedSpec,
    EvaluationSpec,
    Grader,
    InnerSpec,
    LoraSpec,
    ModelSpec,
    MultiGrader,
    PythonGrader,
    RewardModelSpec,
    RewardSpec,
    RolloutSpec,
    ScheduleSpec,
    SimpleGrader,
    StringCheckGrader,
    TextSimilarityGrader,
    TrainerSpec,
    WeightsSpec,
)

__all__ = [
    "MAX_FAULTS",
    "PAIR_KINDS",
    "PRESETS",
    "AlgorithmSpec",
    "CheckpointSpec",
    "CriticSpec",
    "DataSpec",
    "DeepSpeedSpec",
    "EvaluationSpec",
    "Grader",
    "InnerSpec",
    "Kind",
    "LoraSpec",
    "ModelSpec",
    "MultiGrader",
    "PreferenceSpec",
    "PythonGrader",
    "RewardModelSpec",
    "RewardSpec",
    "RolloutSpec",
    "RunSpec",
    "ScheduleSpec",
    "SimpleGrader",
    "StringCheckGrader",
    "TextSimilarityGrader",
    "TrainerSpec",
    "WeightsSpec",
    "Whiten",
    "parse_spec",
    "refuse_unstorable",
]
