"""What a call to a model costs this process: LiteLLM by itself, and through our client.

    python benchmarks/llm_client.py

A loopback server in another process answers; both ways ask it in turn, so that a drift of the machine meets both.
Prints processor time a call, then how long 64 conversations of 12 turns with 4 calls one after the other take against a
server of 200 ms, beside the critical path.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from echo_env.agents.llm.client import Ask, ChatMessage, LlmClient
from echo_env.agents.llm.config import CacheConfig, ModelConfig, ModelsConfig
from echo_env.agents.llm.quiet import litellm
from echo_env.agents.llm.structured import form_of

SERVER = Path(__file__).resolve().parents[1] / "tests" / "faultserver.py"
LETTERS = "You read one reply of a companion and mark what it does. " * 30


class Finding(BaseModel):
    """A finding of a judge."""

    quote: str
    axis: Literal["C", "A", "P"]
    level: int


class Findings(BaseModel):
    """What a judge answers."""

    findings: list[Finding]


@contextmanager
def server(latency: float) -> Iterator[str]:
    """Start the server in another process; yields its URL."""
    command = [sys.executable, str(SERVER), "--latency", str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait()


def request(number: str) -> Ask:
    """Return a judge's request, as long as a real one."""
    messages = (ChatMessage("system", LETTERS), ChatMessage("user", f"The reply {number}: {LETTERS[:300]}"))
    return Ask("judge", messages, schema=Findings)


async def timed(call: Callable[[int], Awaitable[object]], calls: int, at_once: int) -> float:
    """Return milliseconds of processor time a call."""
    gate = asyncio.Semaphore(at_once)

    async def one(k: int) -> None:
        async with gate:
            await call(k)

    await call(-1)
    start = time.process_time()
    await asyncio.gather(*(one(k) for k in range(calls)))
    return 1000 * (time.process_time() - start) / calls


def calls_of(model: str, url: str, folder: Path) -> dict[str, Callable[[int], Awaitable[object]]]:
    """Return the ways to ask, by name."""
    config = ModelConfig(model=model, api_base=url)
    clients = {
        "our client": LlmClient(ModelsConfig(default=config, cache=CacheConfig(mode="off"))),
        "our client, answers kept": LlmClient(
            ModelsConfig(default=config, cache=CacheConfig(mode="record", folder=folder))
        ),
    }

    async def plain(k: int) -> object:
        ask = request(str(k))
        return await litellm().acompletion(
            model=model, api_base=url, api_key="none", temperature=0.7, max_tokens=512, timeout=60, max_retries=0,
            messages=[{"role": m.role, "content": m.content} for m in ask.messages], **form_of(ask, "json_schema"),
        )  # fmt: skip

    ways: dict[str, Callable[[int], Awaitable[object]]] = {"LiteLLM alone": plain}
    for name, client in clients.items():
        ways[name] = lambda k, client=client: client.ask(request(str(k)))  # type: ignore[misc]
    return ways


def processor_time(model: str, rounds: int, calls: int) -> None:
    """Print milliseconds a call of each way, least and median of the rounds."""
    with server(0.0) as url, tempfile.TemporaryDirectory() as folder:
        ways = calls_of(model, url, Path(folder))
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, call in ways.items():
                found[name].append(asyncio.run(timed(call, calls, 16)))
        for name, times in found.items():
            print(f"{model:16} {name:26} {min(times):5.2f} ms a call at least, median {statistics.median(times):5.2f}")


def conversations(model: str, count: int, turns: int, calls: int, latency: float) -> None:
    """Print how long conversations take that all run at once, each making its calls one after the other."""
    with server(latency) as url:
        config = ModelConfig(model=model, api_base=url, concurrency=count)
        client = LlmClient(ModelsConfig(default=config, cache=CacheConfig(mode="off")))

        async def talk(name: int) -> None:
            for k in range(turns * calls):
                await client.ask(request(f"{name} {k}"))

        async def run() -> float:
            await client.ask(request("first"))
            start = time.perf_counter()
            await asyncio.gather(*(talk(name) for name in range(count)))
            return time.perf_counter() - start

        busy = time.process_time()
        took, path = asyncio.run(run()), turns * calls * latency
        busy = time.process_time() - busy
        print(
            f"{count} conversations, {turns} turns of {calls} calls, {1000 * latency:.0f} ms: {took:.1f} s, "
            f"{took / path:.2f} x the critical path of {path:.1f} s; {busy:.1f} s of processor time here"
        )


def profile(model: str, calls: int) -> None:
    """Print where our client's time goes."""
    with server(0.0) as url, tempfile.TemporaryDirectory() as folder, cProfile.Profile() as profiler:
        asyncio.run(timed(calls_of(model, url, Path(folder))["our client"], calls, 16))
    pstats.Stats(profiler).sort_stats("cumtime").print_stats(60)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="hosted_vllm/any and openai/any by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    models = args.model or ["hosted_vllm/any", "openai/any"]
    litellm()
    if args.profile:
        profile(models[0], args.calls)
        return
    for model in models:
        processor_time(model, args.rounds, args.calls)
    conversations(models[0], 64, 12, 4, 0.2)


if __name__ == "__main__":
    main()
