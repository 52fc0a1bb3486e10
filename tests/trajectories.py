"""Small trajectories for the tests of the training maths."""

from __future__ import annotations

from collections.abc import Sequence

from echo_env.trainers.trajectory import TokenSequence, Trajectory, grown


def talk(lengths: Sequence[int], user: int = 3, logprob: float = -1.0) -> TokenSequence:
    """One sequence: `user` context tokens (id 7) before each reply of the given length (ids 1, 2, ...)."""
    sequence = None
    for length in lengths:
        prompt = [*(sequence.ids if sequence else ()), *[7] * user]
        sequence = grown(sequence, prompt, range(1, length + 1), [logprob] * length, "end")
    assert sequence is not None
    return sequence


def trajectory(
    rewards: Sequence[float | None], lengths: Sequence[int] | None = None, group: str = "g", user: int = 3
) -> Trajectory:
    sequence = talk(lengths or [2] * len(rewards), user)
    return Trajectory(
        group=group, sequences=(sequence,), rewards=tuple(rewards), verdict=rewards[-1], score=rewards[-1],
        ended="terminated",
    )  # fmt: skip
