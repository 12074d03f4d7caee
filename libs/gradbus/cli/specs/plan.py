"""Subcommand plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradbus.cli.options import taking
from gradbus.cli.output import AsJson, print_json, print_notice, printable
from gradbus.errors import SettingsError, SpecError

if TYPE_CHECKING:
    from gradbus.plan import Card, ModelSize, Plan, Workload
    from gradbus.plan.memory import Tenant
    from gradbus.plan.plan import Division
    from gradbus.spec import RunSpec

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of `gradbus plan`."""

    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Run spec.")]
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="Card, such as h200, a100, l40s, rtx4090; default: h100.")] = None
    cpu: Annotated[bool, typer.Option("--cpu", help="This machine's CPU in place of a card, measured in about five seconds.")] = False
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Number of cards.")] = 1
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Mean prompt; default: measured, or 256.")] = None
    response_tokens: Annotated[int | None, typer.Option(min=1, help="Mean response; default: half of the longest.")] = None
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder with the model's config.json; default: the spec's path.")] = None
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override a field of the spec.")] = None
    as_json: AsJson = False


@taking(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Show what a run needs, before it is submitted: memory, what fits on which card, seconds of a step. Nothing has to run."""
    from gradbus.client import load_spec
    from gradbus.client.upload import inline_sources
    from gradbus.plan import DEFAULT_CARD, MOST_CARDS, card_of, make_plan
    from gradbus.plan.document import plan_document
    from gradbus.plan.this_cpu import this_cpu
    from gradbus.spec import parse_spec

    body = load_spec(options.spec, options.changes or ())
    if faults := inline_sources(body, options.spec.parent):
        raise SpecError(faults)
    spec = parse_spec(body)
    if options.cpu and (options.gpus > 1 or options.gpu is not None):
        raise SettingsError("--cpu is one machine and no card; leave --gpu and --gpus out, or --cpu")
    if options.gpus > MOST_CARDS:
        raise SettingsError(f"--gpus is {options.gpus}; a plan has at most {MOST_CARDS} cards")
    size = _size(options, spec)
    workload, told = _workload(options, spec)
    found = make_plan(spec, size, workload, this_cpu(size.hidden) if options.cpu else card_of(options.gpu or DEFAULT_CARD), options.gpus)
    if options.as_json:
        print_json(plan_document(found))
        print_notice(f"prompts {told}")
        return
    for line in _lines(found, told):
        typer.echo(printable(line))


def _folder(options: PlanOptions, spec: RunSpec) -> Path:
    return options.model or options.spec.parent / str(spec.model.path)


def _size(options: PlanOptions, spec: RunSpec) -> ModelSize:
    """Of the model in the folder that is named, or of the spec's path beside its file.

    Raises SettingsError, ModelError, and SpecError for a setting that the model's family does not take.
    """
    from gradbus.formats.hf_model import CONFIG, read_family
    from gradbus.plan import read_size

    if options.model is None and spec.model.path is None:
        raise SettingsError("the model comes from another run; name a folder with its config.json by --model DIR")
    folder = _folder(options, spec)
    if not (folder / CONFIG).is_file():
        raise SettingsError(f"{folder} has no {CONFIG}; download that file of the model, and name its folder by --model DIR")
    size = read_size(folder)
    if faults := list(read_family(folder).faults(None if spec.trains_given else spec.rollout, spec.numerics, spec.trainer.lora)):
        raise SpecError(faults)
    return size


def _workload(options: PlanOptions, spec: RunSpec) -> tuple[Workload, str]:
    """The lengths that the plan is made for, and in words where those of prompts come from."""
    from gradbus.cli.specs.plan_lengths import dataset_lengths
    from gradbus.plan import Workload

    prompt, response = options.prompt_tokens, options.response_tokens
    if prompt is not None:
        return Workload.of(spec, prompt, response), "as --prompt-tokens says"
    found = dataset_lengths(spec, options.spec.parent, _folder(options, spec))
    if isinstance(found, str):
        return Workload.of(spec, None, response), f"not measured ({found}); give their mean by --prompt-tokens"
    given = None if found.response is None else max(1, round(found.response))
    workload = Workload.of(spec, max(1, round(found.prompt)), response or given, found.longest_prompt)
    return workload, f"of {found.rows:,} rows: {workload.prompt} tokens in the mean, {workload.longest} the longest"


def _lines(plan: Plan, told: str) -> Iterator[str]:
    bill, workload, card = plan.bill, plan.bill.workload, plan.card
    size, trained = bill.size, "" if bill.trained == bill.size.parameters else f", {_count(bill.trained)} of them trained"
    yield f"model    {size.architecture}, {_count(size.parameters)} parameters{trained}"
    shape = f"{bill.spec.schedule.groups_per_step} x {bill.group_size} samples a step, {workload.prompt} + {workload.response} tokens each"
    yield f"work     {shape} (means), micro-batches of {bill.packed:,} packed tokens"
    yield f"prompts  {told}"
    yield _card(card)
    for tenant in (bill.trainer, bill.engine, bill.reference):
        if tenant is not None:
            yield ""
            yield from _tenant_lines(tenant)
    yield ""
    yield f"{plan.cards} x {card.name}" if not card.cores else "this machine"
    if not plan.divisions:
        yield "   too few cards: trainer and engine have one each"
    yield from (f"   {_division(division)}" for division in plan.divisions)
    if plan.changes:
        yield ""
        yield "with another setting"
        width = max(40, *(len(change.setting) for change in plan.changes))
        yield from (f"   {change.setting:<{width}} {_gib(change.tenant.bytes):>10}  {change.tenant.name}" for change in plan.changes)


def _card(card: Card) -> str:
    if not card.cores:
        return f"card     {card.name}: {_gib(card.memory)}, {card.flops / 1e12:.0f} TFLOP/s, {card.bandwidth / 1e12:.2f} TB/s"
    products = " and ".join(f"{speed / 1e9:.0f} in {dtype}" for dtype, speed in card.speeds.products.items())
    return f"card     {card.name}: {_gib(card.memory)}, {card.cores} cores with {products} GFLOP/s, {card.bandwidth / 1e9:.1f} GB/s"


def _tenant_lines(tenant: Tenant) -> Iterator[str]:
    yield f"{tenant.name:<43} {_gib(tenant.bytes):>10}"
    yield from (f"   {part.name:<40} {_gib(part.bytes):>10}" for part in tenant.parts)


def _division(division: Division) -> str:
    times = division.times
    phases = {"generate": times.generate, "train": times.train, "export": times.export, "load": times.load, "switch": times.switch}
    shown = ", ".join(f"{name} {_seconds(seconds)}" for name, seconds in phases.items() if seconds)
    where = f"{division.placement:<9}"
    if division.placement == "separate":
        where += f" {division.trainers} for training" + (f", {division.rollouts} for rollouts" if division.rollouts else "")
    if not division.fits:
        lacking = max(room.needed - room.available for room in division.rooms)
        return f"{where}: does not fit, {_gib(lacking)} too much"
    limit = "" if division.placement == "together" else f"; more cards would help {times.bottleneck}"
    return f"{where}: {_seconds(times.step)} a step ({shown}){limit}"


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size / (1 << 20):.1f} MiB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _count(number: int) -> str:
    for name, size in (("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,}"
