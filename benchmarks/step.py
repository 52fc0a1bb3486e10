"""Steps a second of `echo/Companion-v0` on one core: judge, director and actor included.

    python benchmarks/step.py

Replies are composed anew for every step, so that no cache of whole sentences helps. Prints the median of several
rounds, and 64 vector environments against one in the same run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import gymnasium as gym

import echo_env  # noqa: F401  (registers the environments)

OPENINGS = ["So", "I wonder about", "Let me stay with", "You told me about", "What stands out is", "I think of"]
MIDDLES = ["the night", "your sister", "the letter", "that call", "the kitchen", "the money", "your hands", "the train"]
ENDS = [
    "and how it landed with you", "and the week after", "which nobody asked about", "before anything was decided",
    "while everyone looked on", "and what it cost you", "because it mattered", "more than they knew",
]  # fmt: skip


def reply(rnd: random.Random, sentences: int) -> str:
    """Return a reply of so many sentences that was hardly seen before."""
    parts = []
    for _ in range(sentences):
        opening, middle, end = rnd.choice(OPENINGS), rnd.choice(MIDDLES), rnd.choice(ENDS)
        parts.append(
            f"{opening} {middle} {end} {rnd.choice(['on day', 'since page', 'after round'])} {rnd.randrange(1000)}."
        )
    return " ".join(parts)


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
_clock = time.perf_counter


def single(steps: int, sentences: int, seed: int) -> float:
    """Return steps a second of one environment, resets included."""
    env = gym.make("echo/Companion-v0")
    rnd = random.Random(seed)
    env.reset(seed=seed)
    start = _clock()
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(reply(rnd, sentences))
        if terminated or truncated:
            env.reset()
    return steps / (_clock() - start)


def vector(envs: int, steps: int, sentences: int, seed: int) -> float:
    """Return steps a second over all of `envs` vector environments."""
    env = gym.make_vec("echo/Companion-v0", num_envs=envs)
    rnd = random.Random(seed)
    env.reset(seed=seed)
    start = _clock()
    rounds = max(1, steps // envs)
    for _ in range(rounds):
        env.step(tuple(reply(rnd, sentences) for _ in range(envs)))
    rate = rounds * envs / (_clock() - start)
    env.close()
    return rate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu on a busy machine")
    args = parser.parse_args()
    global _clock
    _clock = CLOCKS[args.clock]
    single(200, 2, 0)  # loads the encoder and the scenarios
    vector(64, 200, 2, 0)
    rows: dict[str, list[float]] = {"one, two sentences": [], "one, four sentences": [], "64 vector, two sentences": []}
    for k in range(args.rounds):  # in turn, so that a drift of the machine meets all of them
        rows["one, two sentences"].append(single(args.steps, 2, k))
        rows["64 vector, two sentences"].append(vector(64, args.steps, 2, k))
        rows["one, four sentences"].append(single(args.steps, 4, k))
    for name, rates in rows.items():
        print(f"{name:26} {statistics.median(rates):8.0f} steps/s  (min {min(rates):.0f}, max {max(rates):.0f})")
    ratio = statistics.median(
        v / o for v, o in zip(rows["64 vector, two sentences"], rows["one, two sentences"], strict=True)
    )
    print(f"64 vector against one, per step: {ratio:.2f} x the rate")


if __name__ == "__main__":
    main()
