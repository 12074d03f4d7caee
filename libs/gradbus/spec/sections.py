"""The sections of a run spec. Names of fields contain their units."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

from gradbus.spec.engine_traits import ENGINES, EngineName, EngineTraits, engines_with

Integer = Annotated[int, Strict()]
"""A whole number: no text, no boolean, no 8.0."""
Number = Annotated[float, Strict()]
"""Any finite number, a whole one too: no text, no boolean."""
Flag = Annotated[bool, Strict()]
"""True or false: no text, no 0 or 1."""
DecayRate = Annotated[Number, Field(ge=0.0, le=1.0)]
TokenId = Annotated[Integer, Field(ge=0, lt=1 << 22)]
Dtype = Literal["fp32", "bf16"]
Template = Annotated[str, Field(max_length=65_536)]
ColumnName = Annotated[str, Field(min_length=1, max_length=256)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
MOST_NAME_CHARACTERS: Final = 63
Name = Annotated[str, Field(pattern=rf"^[a-z0-9][a-z0-9-]{{0,{MOST_NAME_CHARACTERS - 1}}}$")]
RunName = Annotated[Name, Field(description="a-z, 0-9 and '-'; at most 63 characters.")]
"""A run's name or id."""


_MAX_STEP: Final = 1 << 53
_ENGINE_MEMORY: Final = 0.4
_UNALLOCATED: Final = 0.05
"""Of a shared device: what each process has on it besides tensors."""


class Section(BaseModel):
    """A part of the spec. Unknown fields are faults; instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


def _step_or_last(value: object) -> object:
    """One fault of a version, in place of one for each type that it may have."""
    if value == "last" or (type(value) is int and 0 <= value < _MAX_STEP):
        return value
    raise PydanticCustomError("version", "is no version of a run", {"expected": '"last", or a step: a whole number from 0 on'})


Version = Annotated[Literal["last"] | Annotated[int, Field(ge=0, lt=_MAX_STEP)], BeforeValidator(_step_or_last)]
"""A policy version of a run: the one of its newest checkpoint, or of the checkpoint at a step."""


class AncestorSpec(Section):
    """A version of another run, from which a model comes."""

    run: RunName = Field(description="Id of the run.")
    name: RunName
    version: Integer = Field(ge=0, lt=_MAX_STEP)
    digest: Digest = Field(description="Of the version's tensors.")


class LineageSpec(Section):
    """Where the model of a run comes from, as it was when the run was submitted; those runs may have been deleted since."""

    base: str = Field(max_length=4200, description="The first run's `model.path`, with `@` and the revision of a hub id.")
    ancestors: tuple[AncestorSpec, ...] = Field(max_length=64, description="Nearest first; of more than 64 only the nearest.")


class ModelSpec(Section):
    """The base model: a folder in Hugging Face layout, a hub id with a revision, or a version of another run."""

    path: str | None = Field(None, min_length=1, max_length=4096, description="Folder in Hugging Face layout, or a hub id (`owner/name`).")
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = Field(
        None, description="40 hex digits: the commit of a hub id; required with one."
    )
    run: RunName | None = Field(
        None, description="In place of `path`: id of a run, or name (a-z, 0-9 and '-', at most 63) of the newest such run."
    )
    version: Version | None = Field(None, description='With `run`: step of one of its checkpoints; unset: `"last"`, the newest one.')
    files: dict[str, Digest] | None = Field(None, max_length=1100, description="File name to digest. Filled in when the model is stored.")
    adapters: Digest | None = Field(
        None, description="With a `run` that trains adapters: their file, with which this run begins. Filled in when the run is stored."
    )
    lineage: LineageSpec | None = Field(None, description="With `run`: where the files come from. Filled in when the run is stored.")

    @property
    def sources(self) -> dict[str, str | None]:
        """The fields that may say where the model is, of which exactly one is set."""
        return {"path": self.path, "run": self.run}

    @property
    def source(self) -> str:
        """In words: the path, or the run and its version."""
        return self.path or f"version {'last' if self.version is None else self.version} of run {self.run}"

    @property
    def base(self) -> str:
        """The path, with `@` and the revision of a hub id; of a run's version, that from which its first ancestor started."""
        if self.lineage is not None:
            return self.lineage.base
        return f"{self.path}@{self.revision}" if self.revision else self.source


class RolloutSpec(Section):
    """How samples are generated."""

    engine: EngineName = "torch"
    slots: Integer = Field(64, ge=4, le=1024, description="Samples decoded at once; constant during a run, for it affects bits.")
    group_size: Integer = Field(8, ge=1, le=1024, description="Samples of one prompt, a greedy one among them if that is the baseline.")
    max_new_tokens: Integer = Field(128, ge=1, le=131072)
    max_prompt_tokens: Integer | None = Field(
        None, ge=1, le=1 << 24, description="Longer prompts are refused. Default: what fits the context."
    )
    temperature: Number = Field(1.0, ge=0.01, le=10.0)
    top_p: Number = Field(
        1.0, ge=0.0, le=1.0, description="Only 1.0: a truncated distribution has no log-probabilities the trainer could match."
    )
    top_k: Integer = Field(0, ge=0, lt=1 << 31, description="Only 0 (off), for the same reason.")
    stop_token_ids: tuple[TokenId, ...] = Field(
        (), max_length=1024, description="Stop tokens beyond the tokenizer's and the generation config's."
    )
    threads: Integer = Field(1, ge=1, le=256, description="Torch threads of one engine; affects bits.")
    placement: Literal["separate", "shared", "timed"] = Field(
        "separate",
        description="Devices of trainer and engine. `separate`: each has its own; `shared`: both are on one at the same time, each "
        "with its part of the memory; `timed`: they use one in turns.",
    )
    memory_fraction: Number | None = Field(
        None, ge=0.05, le=0.9, description="Share of a shared device's memory that the engine takes. Default: 0.4 with `shared`."
    )
    pause: Literal["abort", "retract", "in_place"] = Field(
        "retract",
        description=f"`{'`, `'.join(engines_with('pauses'))}` in a `free` schedule: "
        "what happens to samples in flight when a version is loaded.",
    )
    routing_replay: Flag = Field(False, description="The trainer sends each token to the experts that the engine chose.")

    @property
    def traits(self) -> EngineTraits:
        """Traits of `engine`."""
        return ENGINES[self.engine]

    @property
    def engine_memory(self) -> float | None:
        """Share of the device's memory for the engine; None: its own default."""
        return _ENGINE_MEMORY if self.placement == "shared" and self.memory_fraction is None else self.memory_fraction

    @property
    def trainer_memory(self) -> float:
        """Share of its device's memory that the trainer may allocate."""
        return 1.0 if self.placement != "shared" else 1.0 - _UNALLOCATED - (self.engine_memory or 0.0)


ToolParser = Literal["hermes", "qwen3_coder", "llama3", "gpt_oss", "plain"]
"""How a family of models writes tool calls."""
Thinking = Literal["keep", "template", "strip"]
"""What becomes of the policy's thinking in turns that are over."""


class ServedTeacherSpec(Section):
    """What a teacher's server said of itself when the run was submitted."""

    model_path: str = Field(max_length=4096, description="The server's model.")
    weight_version: str = Field(max_length=4096, description="The server's name of its weights.")
    vocab_size: Integer = Field(
        ge=1, le=1 << 31, description="The policy's number of tokens; every id that the server is asked about is below it."
    )


class TeacherSpec(ModelSpec):
    """A language model with the policy's tokenizer, whose log-probabilities of the sampled tokens the run trains on.

    Exactly one of `path`, `run` and `url`.
    """

    url: Annotated[str, Field(max_length=2048, pattern=r"^https?://[A-Za-z0-9._:\[\]%~/-]+$")] | None = Field(
        None, description="In place of `path`: http(s)://host:port of an SGLang server."
    )
    served: ServedTeacherSpec | None = Field(None, description="With `url`: what the server has. Filled in when the run is stored.")
    coefficient: Number | None = Field(
        None,
        gt=0.0,
        le=1000.0,
        description="Beside rewards: what log pi_teacher - log mu of a token is multiplied by and added to its advantage.",
    )
    top_k: Integer | None = Field(
        None,
        ge=1,
        le=128,
        description="Without rewards: trains on the KL over the teacher's so many most likely tokens, in place of the sampled one.",
    )

    @property
    def sources(self) -> dict[str, str | None]:
        """See `ModelSpec`."""
        return {**super().sources, "url": self.url}

    @property
    def source(self) -> str:
        """See `ModelSpec`."""
        return self.url or super().source


class TurnsSpec(Section):
    """How the turns of an episode follow each other, as text and tokens."""

    calls_per_turn: Integer = Field(8, ge=1, le=128, description="Tool calls of a turn; more are answered as errors.")
    invalid_calls: Integer = Field(3, ge=1, le=1024, description="An episode ends after so many turns in a row without one valid call.")
    tool_result_tokens: Integer = Field(
        1024, ge=16, le=131_072, description="Tokens of one result of a tool; of a longer one its beginning and end are kept."
    )
    tool_parser: ToolParser | None = Field(None, description="How calls are written. Default: found from the chat template.")
    thinking: Thinking | None = Field(
        None,
        description="What becomes of the thinking in turns that are over, of a model whose chat template removes it: `keep`, it stays; "
        "`template`, it goes where the template removes it; `strip`, it goes when a user speaks. Default: the template removes none.",
    )


class EnvironmentSpec(TurnsSpec):
    """A world in which each sample is an episode of many turns; exactly one of `service`, `source` and `agent`.

    Rewards come from it, and from `[reward]` too if that is given: they are added.
    """

    source: str | None = Field(None, max_length=131_072, description="Python source that defines a class `Environment`.")
    file: str | None = Field(None, max_length=4096, description="Path of the source; the command line replaces it by the text.")
    service: str | None = Field(None, max_length=2048, description="http(s)://host:port/path of your own environment.")
    agent: str | None = Field(
        None,
        max_length=2048,
        description="Your own agent plays by `base_url` and key: `pull`, if it claims episodes over HTTP, http(s)://host:port/path, to "
        "which each one is posted, or spawn://name, a command that is started for each one.",
    )
    max_turns: Integer = Field(8, ge=1, le=1024, description="Turns of the policy in an episode.")
    max_tokens: Integer | None = Field(
        None, ge=1, le=1 << 24, description="Tokens that the policy draws in an episode. Default: those of all turns."
    )
    credit: Literal["episode", "turn"] = Field(
        "episode", description="`turn`: a turn's advantage is made from the rewards from it on, and not from all of the episode."
    )
    step_seconds: Number = Field(
        30.0, ge=0.1, le=3600.0, description="Deadline of one answer of the environment, or of an agent's next step."
    )
    journal: Flag | None = Field(
        None,
        description="Each turn is recorded, so that another worker goes on where one died. Default: if the environment calls itself "
        "recorded.",
    )
    sandbox: Literal["namespaces", "bubblewrap", "gvisor"] | None = Field(
        None, description="With `source`: `self.sandbox.run` executes commands, confined at least so much. Default: it does not."
    )
    max_masked: Number = Field(
        0.5, gt=0.0, le=1.0, description="The run fails if a larger share of the samples of 64 groups, or of a step's, have no reward."
    )

    @property
    def may_have_journal(self) -> bool:
        """Whether episodes may be recorded; what the environment says of itself decides. Python is seeded, so it need not be."""
        return self.journal if self.journal is not None else self.source is None


def most_drawn(rollout: RolloutSpec, environment: EnvironmentSpec | None) -> int:
    """The most tokens that the policy draws in a sample; the model's context may have room for fewer."""
    if environment is None:
        return rollout.max_new_tokens
    drawn = rollout.max_new_tokens * environment.max_turns
    return drawn if environment.max_tokens is None else min(drawn, environment.max_tokens)


class ScheduleSpec(Section):
    """How far generation may run ahead of training."""

    mode: Literal["fixed_lag", "free"] = "fixed_lag"
    max_staleness: Integer = Field(1, ge=0, le=64)
    groups_per_step: Integer = Field(32, ge=1, le=65536)
    dynamic_sampling: Integer = Field(
        1,
        ge=1,
        le=64,
        description="`fixed_lag`: filtered groups are replaced by the next ones in the order of the data, until groups_per_step groups "
        "of a step can be trained, or it has taken this many times groups_per_step groups; 1: they are not replaced.",
    )
    steps: Integer = Field(ge=1, le=10_000_000)
    group_deadline_seconds: Number = Field(
        60.0, gt=0.0, le=86_400.0, description="`free` only: a group that is older and not judged is dropped if it blocks a step."
    )

    @property
    def has_fixed_steps(self) -> bool:
        """Whether a group's index says which step takes it."""
        return self.mode == "fixed_lag" and self.dynamic_sampling == 1


class DeepSpeedSpec(Section):
    """How DeepSpeed trains; only with `trainer.backend = "deepspeed"`."""

    zero_stage: Literal[0, 1, 2, 3] = Field(
        2, description="Sharded across ranks: 0 nothing, 1 optimiser state, 2 gradients too, 3 weights too."
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        "none", description="State kept in host memory; `all`: optimiser state and weights."
    )
    optimizer: Literal["adamw", "cpu_adam"] = Field("adamw", description="`cpu_adam` is DeepSpeed's AdamW for an offloaded optimiser.")


LinearLayer = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"]


class LoraSpec(Section):
    """Low-rank adapters beside frozen weights (Hu et al. 2021, arXiv:2106.09685); without this section every weight is trained."""

    rank: Integer = Field(16, ge=1, le=1024, description="Rank of each adapter.")
    alpha: Number = Field(32.0, gt=0.0, le=1e6, description="An adapter's product is multiplied by alpha / rank.")
    target_modules: tuple[LinearLayer, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        max_length=len(get_args(LinearLayer)),
        description="Linear layers with an adapter; default: all of attention and feed-forward.",
    )

    @property
    def scale(self) -> float:
        """The factor of an adapter's product: alpha / rank."""
        return self.alpha / self.rank


class CriticSpec(Section):
    """The critic of PPO (Schulman et al. 2017, arXiv:1707.06347); only with `algorithm.advantage = "gae"`."""

    kind: Literal["full", "lora", "head"] = Field(
        "full",
        description="`full`: a model of its own, a copy of the base model; `lora`: adapters beside such a copy; `head`: a value head on "
        "the policy's hidden states.",
    )
    rank: Integer | None = Field(None, ge=1, le=1024, description="`lora`: rank of each adapter, on all linear layers; default: 16.")
    learning_rate: Number = Field(1e-5, gt=0.0, le=10.0)
    updates: Integer = Field(1, ge=1, le=64, description="Updates of the critic in a step.")
    value_clip: Number | None = Field(0.5, gt=0.0, le=1e9, description="How far a value may move in a step.")
    warmup_steps: Integer = Field(0, ge=0, le=10_000_000, description="First steps, in which only the critic is trained.")
    gamma: DecayRate = Field(1.0, description="Discount of a token.")
    policy_lambda: DecayRate = Field(0.95, description="Lambda of the advantages.")
    length_alpha: Number | None = Field(
        None, gt=0.0, le=1e6, description="Lambda of the advantages is 1 - 1 / (length_alpha · tokens) instead, and at least 0."
    )
    value_lambda: DecayRate = Field(1.0, description="Lambda of the critic's targets; 1: the returns.")
    target: Literal["returns", "vtrace"] = Field(
        "returns",
        description="Whose returns the values learn: of the policies that sampled, or by V-trace of the policy before the step.",
    )
    freeze: Literal["none", "attention"] = Field("none", description="`full`: weights that stay those of the base model.")

    @property
    def adapters(self) -> LoraSpec | None:
        """The adapters of kind `lora`."""
        if self.kind != "lora":
            return None
        return LoraSpec() if self.rank is None else LoraSpec(rank=self.rank, alpha=2.0 * self.rank)


class InnerSpec(Section):
    """The updates of the policy in a step."""

    epochs: Integer = Field(1, ge=1, le=64, description="How often a step trains each of its groups.")
    minibatches: Integer = Field(1, ge=1, le=1024, description="Parts of an epoch, of whole groups; each makes an update.")
    stop_kl: Number | None = Field(
        None,
        gt=0.0,
        le=1e6,
        description="The updates of a step end after one that found the policy further than this from that before the step, nats a token.",
    )

    @property
    def updates(self) -> int:
        """Most updates of a step: a part without a token to train makes none."""
        return self.epochs * self.minibatches


class TrainerSpec(Section):
    """The optimiser."""

    backend: Literal["torch", "deepspeed"] = Field("torch", description="`torch` is one process; `deepspeed` one or more ranks.")
    dtype: Dtype = Field(
        "fp32",
        description="dtype of forward and backward, and of the torch engine's. With `bf16` the optimiser updates float32 weights, "
        "which are rounded for the passes.",
    )
    gradient_checkpointing: Flag = Field(False, description="Computes activations again in the backward pass: less memory, more time.")
    deepspeed: DeepSpeedSpec = DeepSpeedSpec()
    lora: LoraSpec | None = Field(None, description="Trains only low-rank adapters; published versions hold only adapters.")
    critic: CriticSpec | None = Field(None, description='Trains a critic, which `algorithm.advantage = "gae"` needs.')
    inner: InnerSpec = Field(InnerSpec(), description="Updates of the policy in a step.")
    learning_rate: Number = Field(1e-6, gt=0.0, le=10.0)
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.95)
    weight_decay: Number = Field(0.0, ge=0.0, le=10.0)
    warmup_steps: Integer = Field(0, ge=0, le=10_000_000)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    max_grad_norm: Number = Field(1.0, gt=0.0, le=1e12)
    micro_batch_tokens: Integer = Field(8192, ge=1, le=1 << 20)
    threads: Integer = Field(
        1, ge=1, le=256, description="On a CPU; of the plain trainer they compute micro-batches side by side. Affects bits."
    )


class WeightsSpec(Section):
    """How published versions travel from the trainer to the workers."""

    transport: Literal["store", "delta", "broadcast"] = Field(
        "store",
        description="`store`: whole versions in object storage; `delta`: only the changes of a step; "
        "`broadcast`: whole versions, also sent by broadcast.",
    )
    dtype: Dtype | None = Field(
        None, description="dtype of published versions, with which workers sample. Default: `trainer.dtype`; `bf16` rounds float32 weights."
    )
    anchor_every: Integer = Field(16, ge=1, le=64, description="`delta`: every Nth version is stored whole, and so is every checkpoint.")


class CheckpointSpec(Section):
    """Durable points to resume from."""

    every: Integer = Field(50, ge=1, le=10_000_000, description="Steps between checkpoints.")
    keep: Integer = Field(3, ge=1, le=100)


class EvaluationSpec(Section):
    """Held-out rows, before the first step, every N and at the end: greedy decoding, or the loss of a run on given responses."""

    every: Integer = Field(50, ge=1, le=10_000_000)
    samples: Integer = Field(256, ge=1, le=100_000, description="Number of rows, from the start of the file.")
    metric: str = Field("reward", max_length=256, description="Reported as accuracy: `reward`, or the name of one of the grader's parts.")
