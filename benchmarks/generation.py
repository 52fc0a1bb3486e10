"""New tokens a second of the batched policy, against a loop of transformers' `generate` over single conversations.

    OMP_WAIT_POLICY=passive python benchmarks/generation.py --threads 1 [--cpu]

Both write the same number of tokens, greedily, with no early stop, prompts read included. "first" reads each whole
conversation; "next" is the turn after it, of which the policy remembers all but the newest message. The `generate`
loop reads the conversation of "next" from the start, as it must; its rate does not depend on how many conversations
there are, so it is timed on a few of them, beside each batch.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence

import torch

from echo_env.agents.policy import LocalModel, Options, local_model
from echo_env.agents.smollm2 import smollm2_135m
from echo_env.roles import Observation
from echo_env.types import Message

SAID = (
    "I keep going over that phone call, and what I should have said before she hung up.",
    "That call stays with you, and it sounds as if you hear your own silence in it most of all.",
    "Maybe. At work nobody knows, I answer mails until late so that I need not think about it.",
    "You fill the evening so that the quiet cannot start, and nobody around you gets to see why.",
)


def conversation(policy: LocalModel, tokens: int, number: int) -> Observation:
    """Return a conversation of at least so many prompt tokens, unlike the others from its first word."""
    said = itertools.cycle(SAID)
    messages: list[Message] = [Message(role="user", text=f"{number} days ago it ended. {next(said)}")]
    while len(policy.prompt_tokens(Observation(tuple(messages)))) < tokens:
        messages += [Message(role="companion", text=next(said)), Message(role="user", text=next(said))]
    return Observation(tuple(messages))


def go_on(observation: Observation, reply: str) -> Observation:
    """Return the conversation one exchange later."""
    more = Message(role="companion", text=reply), Message(role="user", text=SAID[2])
    return Observation((*observation.messages, *more))


def generate(policy: LocalModel, observations: Sequence[Observation]) -> None:
    """Answer one conversation after the other by `generate`."""
    for observation in observations:
        ids = torch.tensor([policy.prompt_tokens(observation)], device=policy.model.device)
        policy.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=policy.max_new_tokens,
            max_new_tokens=policy.max_new_tokens,
            pad_token_id=0,
        )


def rate(policy: LocalModel, conversations: int, work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return new tokens a second."""
    start = clock()
    work()
    return conversations * policy.max_new_tokens / (clock() - start)


def row(policy: LocalModel, batch: int, tokens: int, single: int, clock: Callable[[], float]) -> str:
    """Return one line of the table."""
    policy.forget()
    now = [conversation(policy, tokens, n) for n in range(batch)]
    replies: list[str] = []
    first = rate(policy, batch, lambda: replies.extend(policy.respond_batch(now)), clock)
    then = [go_on(o, r) for o, r in zip(now, replies, strict=True)]
    few = then[:single]
    loop = rate(policy, len(few), lambda: generate(policy, few), clock)
    later = rate(policy, batch, lambda: policy.respond_batch(then), clock)
    return f"{batch:>5} {loop:>9.1f} {first:>7.1f} {later:>7.1f} {first / loop:>8.1f} {later / loop:>7.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="folder; SmolLM2-135M where empty")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 16, 30])
    parser.add_argument("--prompt-tokens", type=int, default=300)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--single", type=int, default=2, help="conversations that the generate loop is timed on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="processor time, not wall time: for a shared machine")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    options = Options(threads=args.threads, temperature=0.0, max_new_tokens=args.new_tokens)
    policy = local_model(args.model, **options) if args.model else smollm2_135m(**options)
    policy.stops = frozenset()
    generate(policy, [conversation(policy, 50, 0)])
    sizes = f"{args.prompt_tokens}-token prompts, {args.new_tokens} new tokens each"
    print(f"{policy.id}, {sizes}, {args.threads} thread(s), new tokens/{'CPU ' * args.cpu}s")
    print(f"{'batch':>5} {'generate':>9} {'first':>7} {'next':>7} {'first x':>8} {'next x':>7}")
    for batch in args.batch:
        print(row(policy, batch, args.prompt_tokens, args.single, clock))


if __name__ == "__main__":
    main()
