"""The groups of a task as episodes: see `TaskSampler`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from gradbus import crash_points
from gradbus.aio.tasks import cancel_and_wait, gather_or_cancel
from gradbus.algorithms import algorithm_of
from gradbus.buffer import keys
from gradbus.control.runs import RunRecord
from gradbus.errors import EnvironmentFaultError, SupersededError
from gradbus.formats.tokens import pack_ids, unpack_ids
from gradbus.ids import environment_seed, sample_id
from gradbus.telemetry import get_logger, under
from gradbus.v1.environment_service_pb2 import DescribeResponse
from gradbus.v1.episode_pb2 import Episode, Turn
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Fork
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup
from gradbus_rollout.episodes.answers import shortened
from gradbus_rollout.episodes.attempt import PlayerParts
from gradbus_rollout.episodes.episode import EpisodeStart, PlayedEpisode
from gradbus_rollout.episodes.journal import JournalPlace
from gradbus_rollout.episodes.metrics import count_episodes
from gradbus_rollout.episodes.player import EpisodePlayer
from gradbus_rollout.episodes.transcript import TokenSequence
from gradbus_rollout.run_faults import fatal_for_run
from gradbus_rollout.tasks.generation_traces import TaskTimes, first_trace
from gradbus_rollout.tasks.sampler import GroupHeaders, PromptTables
from gradbus_rollout.tasks.samples import prompt_group

_log = get_logger(__name__)
_MOST_BYTES: Final = 1 << 28
"""Of a group: half of the largest value that the buffer takes."""
_EPISODES_PER_SLOT: Final = 4
"""Episodes at a time for each slot of the engine: most of the others wait for their environment."""


class EpisodeSampler:
    """A sample is an episode in the run's environment."""

    def __init__(self, record: RunRecord, parts: PlayerParts, tables: PromptTables, description: DescribeResponse) -> None:
        self._record = record
        self._tables = tables
        self._presence = parts.environment.presence
        self._description = description
        self._player = EpisodePlayer(parts, _EPISODES_PER_SLOT * record.spec.rollout.slots)
        self._headers = GroupHeaders(record.run_id, self._presence, parts.engine)
        self._is_agents = parts.limits.is_agents

    async def sample(self, task: Task, times: TaskTimes) -> list[Group]:
        """See `TaskSampler.sample`."""
        table, rows = self._tables.of(task), [group.row for group in task.groups]
        with fatal_for_run(self._presence):
            ids, items = await table.ids(rows), await table.items(rows)
            headers = await self._headers.of(task, table)
        spec = self._record.spec
        shape = spec.seed, spec.rollout.group_size, algorithm_of(spec).greedy_samples
        prompts = [prompt_group(task, group, of_row, *shape) for group, of_row in zip(task.groups, ids, strict=True)]
        with under(first_trace(task)), fatal_for_run(self._presence):
            starts = [self._starts(task, *of_group) for of_group in zip(task.groups, prompts, items, strict=True)]
            playing = asyncio.create_task(gather_or_cancel([self._play(of_group) for of_group in starts]))
            try:
                await asyncio.sleep(0)
                crash_points.reached("mid-decode")
                played = await playing
            finally:
                await cancel_and_wait(playing)
            times.mark_sampled(
                [_completions(prompt.key, episodes) for prompt, episodes in zip(prompts, played, strict=True)],
                [[episode.transcript.times for episode in episodes] for episodes in played],
            )
            groups = [self._filled(*of_group) for of_group in zip(headers, prompts, played, strict=True) if of_group[2]]
            count_episodes(sample for group in groups for sample in group.samples)
            await self._name_prompts(groups, {group.index: of_row for group, of_row in zip(task.groups, ids, strict=True)})
        return groups

    async def _name_prompts(self, groups: Sequence[Group], ids: Mapping[int, tuple[int, ...]]) -> None:
        """The texts of conversations that the environment began, in place of the rows' prompts."""
        begun = [group for group in groups if group.prompt_ids != pack_ids(ids[group.index])]
        texts = await self._tables.training.decode([unpack_ids(group.prompt_ids) for group in begun])
        for group, text in zip(begun, texts, strict=True):
            group.prompt_text = text

    def _starts(self, task: Task, group: GroupTask, prompt: PromptGroup, item: str) -> list[EpisodeStart]:
        purpose = "evaluation" if task.kind == TaskKind.TASK_KIND_EVALUATION else "train"
        world = environment_seed(self._record.spec.seed, purpose, group.index)
        run_id = self._record.run_id
        journal = keys.journal(run_id, group.index) if purpose == "train" else keys.evaluation_journal(run_id, task.version, group.index)
        return [
            EpisodeStart(
                episode_id=f"{purpose}.{task.version}.{group.index}.{n}",
                prompt_ids=prompt.prompt_ids,
                item=item,
                world_seed=world,
                seed=seed,
                greedy=prompt.is_greedy(n),
                traceparent=group.traceparent,
                player=secrets.token_hex(8),
                place=JournalPlace(journal, n),
            )
            for n, seed in enumerate(prompt.seeds)
        ]

    async def _play(self, starts: Sequence[EpisodeStart]) -> list[PlayedEpisode]:
        """The episodes of a group; none if another worker plays it from here on."""
        try:
            return await gather_or_cancel([self._player.play(start) for start in starts])
        except SupersededError as error:
            _log.info("group_superseded", episode=starts[0].episode_id, error=str(error))
            return []

    def _filled(self, header: Group, prompt: PromptGroup, episodes: Sequence[PlayedEpisode]) -> Group:
        """The group with its samples.

        Raises EnvironmentFaultError if their conversations begin differently. Those of an agent may: the group has the first one's prompt.
        """
        begun = [episode for episode in episodes if episode.transcript.turns] or episodes
        prompt_ids = begun[0].prompt_ids
        if not self._is_agents and any(episode.prompt_ids != prompt_ids for episode in begun):
            raise EnvironmentFaultError(
                f"the environment begins the episodes of group {header.index} with different messages, and their rewards could not be "
                "compared; derive the first messages from `item` and `seed`, which are the same for a group"
            )
        header.prompt_ids = pack_ids(prompt_ids)
        for n, (seed, played) in enumerate(zip(prompt.seeds, episodes, strict=True)):
            transcript = played.transcript
            own, forks = played.sequences_after(prompt_ids)
            header.samples.add(
                sample_id=sample_id(header.index, n),
                n=n,
                seed=seed,
                token_ids=pack_ids(own.token_ids),
                logprobs=bytes(own.logprobs),
                spans=own.spans,
                forks=map(_fork, forks),
                finish_reason=FINISH_REASON_LENGTH if played.is_cut_off else FINISH_REASON_STOP,
                text="\n".join(turn.text for turn in transcript.turns),
                episode=Episode(
                    turns=_numbered(transcript.turns, first=0 if own.token_ids else 1),
                    end_reason=played.end,
                    outcome=played.outcome,
                    environment_digest=self._description.digest,
                    attempt=played.attempt,
                ),
            )
        if (size := header.ByteSize()) > _MOST_BYTES:
            raise EnvironmentFaultError(
                f"the episodes of group {header.index} take {size >> 20} MiB, at most {_MOST_BYTES >> 20} fit into the buffer; lower "
                "rollout.group_size or environment.max_turns, or let the environment say less"
            )
        return header


def _fork(sequence: TokenSequence) -> Fork:
    return Fork(
        prompt_ids=pack_ids(sequence.prompt_ids),
        token_ids=pack_ids(sequence.token_ids),
        logprobs=bytes(sequence.logprobs),
        spans=sequence.spans,
    )


def _numbered(turns: Sequence[Turn], first: int) -> Iterator[Turn]:
    """The turns as they are stored, if the transcript's first sequence has this number in the sample."""
    for turn in turns:
        turn.sequence += first
        for message in turn.messages:
            message.content = shortened(message.content)
        yield turn


def _completions(key: str, episodes: Sequence[PlayedEpisode]) -> GroupCompletion:
    """The episodes as the engine's samples, for their traces: from the first token drawn to the last."""
    return GroupCompletion(key, tuple(_completion(episode) for episode in episodes))


def _completion(episode: PlayedEpisode) -> Completion:
    transcript = episode.transcript
    times = (transcript.began, transcript.ended) if transcript.began else None
    ids = tuple(chain.from_iterable(sequence.token_ids for sequence in transcript.sequences))
    return Completion(ids, b"", (), "length" if episode.is_cut_off else "stop", times)
