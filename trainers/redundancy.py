"""PEER's redundancy (eq. 3 to 5) over rollouts: what siblings, or the talk so far, have said already is worth less."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from echo_env.agents.embedded.encoders import encoder_for, encoder_of
from echo_env.agents.embedded.language import words
from echo_env.trainers.advantages import group_redundancy, history_redundancy, length_gate, reweighted
from echo_env.trainers.outcomes import Rollout
from echo_env.trainers.trajectory import Trajectory


def reweighed(rollouts: Sequence[Rollout]) -> list[Trajectory]:
    """Return the trajectories of rollouts, rewards divided by redundancy; failed rollouts are left out.

    Replies of one group are compared turn by turn, each with those of the siblings that reached the turn, and with all
    that was said before it in its own conversation. Lengths are those of the policy's tokens.

    Raises:
        ConfigError: A reward is negative.
    """
    groups: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.trajectory is not None:
            groups[rollout.task.group].append(rollout)
    changed = {id(r): t for group in groups.values() for r, t in zip(group, _group(group), strict=True)}
    return [changed[id(r)] for r in rollouts if r.trajectory is not None]


def _group(rollouts: Sequence[Rollout]) -> list[Trajectory]:
    trajectories = [r.trajectory for r in rollouts if r.trajectory is not None]
    rewards = [list(t.rewards) for t in trajectories]
    lengths = [[reply.end - reply.start for reply in t.replies()] for t in trajectories]
    said = [_said(r) for r in rollouts]
    for turn in range(max(map(len, rewards))):
        there = [n for n, own in enumerate(rewards) if turn < len(own)]
        replies_GD = torch.stack([said[n][0][turn] for n in there])
        s_hi_G = torch.cat([history_redundancy(replies_GD[g : g + 1], said[n][1][turn]) for g, n in enumerate(there)])
        tau = length_gate(torch.tensor([lengths[n][turn] for n in there]))
        known = [rewards[n][turn] for n in there]
        raw_G = torch.tensor([torch.nan if r is None else r for r in known], dtype=torch.float64)
        new_G = reweighted(raw_G, s_hi_G, group_redundancy(replies_GD), tau).tolist()
        for n, old, new in zip(there, known, new_G, strict=True):
            rewards[n][turn] = None if old is None else new
    return [t.model_copy(update={"rewards": tuple(r)}) for t, r in zip(trajectories, rewards, strict=True)]


def _said(rollout: Rollout) -> tuple[list[Tensor], list[Tensor]]:
    """Return the vector of each reply, and the vectors of all that was said before it, H x D."""
    task = rollout.task
    language = task.scenario.language if task.scenario else task.prompt.language if task.prompt else "en"
    encoder = encoder_of(encoder_for(language))
    before = [text for e in (task.prompt.history if task.prompt else ()) for text in (e.user, e.reply)]
    pairs = [(turn.user, turn.reply) for turn in rollout.turns]
    texts = [*before, *(text for pair in pairs for text in pair)]
    vectors = torch.from_numpy(np.array(encoder.encode_all([words(t, language) for t in texts]), dtype=np.float64))
    places = range(len(before) + 1, len(texts), 2)
    return [vectors[place] for place in places], [vectors[:place] for place in places]
