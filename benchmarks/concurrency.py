"""Many conversations at once against a slow server: how near they come to the slowest one's own waiting.

    python benchmarks/concurrency.py                      # 64 conversations of 12 turns, 200 +- 50 ms a call
    python benchmarks/concurrency.py --conversations 16 --turns 4

All four parts are played by the server, in a process of its own: policy, judge, director, actor, one after the other
in each conversation. The critical path is what the slowest conversation waited for the server, as the server counts
it. Printed first: LiteLLM's own processor time a call, since one process can only make so many calls a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing as mp
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiohttp import web


class SlowServer:
    """Answers every role sensibly after a drawn latency, and counts what it does."""

    def __init__(self, latency: float, spread: float) -> None:
        self.latency, self.spread, self.draw = latency, spread, random.Random(0)
        self.start()

    def start(self) -> None:
        """Count from nothing."""
        self.waited: dict[str, float] = defaultdict(float)
        self.calls = self.in_flight = self.most = 0
        self.busy = self.full = self.area = 0.0
        self.changed = time.perf_counter()

    def count(self, change: int, limit: int) -> None:
        """Note how many are in flight from now on, and how long as many as the limit allows were."""
        now = time.perf_counter()
        self.busy += (now - self.changed) * (self.in_flight > 0)
        self.area += (now - self.changed) * self.in_flight
        self.full += (now - self.changed) * (self.in_flight >= limit)
        self.changed, self.in_flight = now, self.in_flight + change
        self.most = max(self.most, self.in_flight)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one call."""
        body = await request.json()
        limit = int(body.get("limit") or 10**9)
        self.count(+1, limit)
        self.calls += 1
        mark = self.conversation(body)
        wait = self.latency + self.draw.uniform(-self.spread, self.spread)
        await asyncio.sleep(wait)
        self.waited[mark] += wait
        self.count(-1, limit)
        return web.json_response(_completion(body, mark))

    def conversation(self, body: dict[str, Any]) -> str:
        """Tell conversations apart: every message of a person holds a mark, given with their first."""
        text = json.dumps(body["messages"])
        at = text.find("mark-")
        return text[at : at + 11] if at >= 0 else f"mark-{self.calls:06}"


def _completion(body: dict[str, Any], mark: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if body.get("tools"):
        arguments = json.dumps({"reason": "It flows.", "words": "Go on as you are."})
        function = {"name": "continue_naturally", "arguments": arguments}
        message["tool_calls"] = [{"id": "call_0", "type": "function", "function": function}]
    elif body.get("response_format"):
        message["content"] = json.dumps({"evidence": [], "summary": "They talk."})
    else:
        draw = random.Random(json.dumps(body["messages"]))
        message["content"] = f"{mark} {' '.join(draw.choices(WORDS, k=24))}."
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 500, "completion_tokens": 20, "total_tokens": 520},
    }  # fmt: skip


WORDS = [
    a + b + c
    for a in ("ba", "ke", "lo", "mi", "nu", "ra", "so", "ti")
    for b in "bdgklmnprst"
    for c in ("a", "en", "ol")
]
"""Some 260 words that mean nothing: talk, too, comes back to the same words."""


def serve(pipe: Connection, latency: float, spread: float) -> None:
    """Serve until told to stop; send the port first and the counts at every question."""

    async def main() -> None:
        server = SlowServer(latency, spread)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", server.handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pipe.send(runner.addresses[0][1])
        while await asyncio.to_thread(pipe.recv) != "stop":
            server.count(0, 0)
            counted = {
                "calls": server.calls,
                "most": server.most,
                "busy": server.busy,
                "full": server.full,
                "area": server.area,
            }
            pipe.send({**counted, "slowest": max(server.waited.values(), default=0.0)})
            server.start()
        await runner.cleanup()

    asyncio.run(main())


def per_call(url: str, calls: int = 200) -> float:
    """Return LiteLLM's processor time a call, in milliseconds, as it comes from its package."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import asks the network for prices
    import litellm

    logging.getLogger("LiteLLM").setLevel(logging.WARNING)
    litellm.suppress_debug_info = True

    async def ask() -> None:
        await litellm.acompletion(
            model="hosted_vllm/slow", api_base=url, api_key="none", messages=[{"role": "user", "content": "hi " * 500}]
        )

    async def main() -> float:
        await ask()
        start = time.process_time()
        await asyncio.gather(*(ask() for _ in range(calls)))
        return (time.process_time() - start) / calls * 1e3

    return asyncio.run(main())


def play(url: str, conversations: int, turns: int, concurrency: int) -> dict[str, float]:
    """Play a run; return wall and processor seconds."""
    from echo_env.agents.rollout import RunConfig, run
    from echo_env.build import WorldConfig
    from echo_env.profiles import get_scenario, scenario_ids

    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models.yaml"
        models.write_text(
            f"default: {{model: hosted_vllm/slow, api_base: '{url}', concurrency: {concurrency}, "
            f"extra: {{extra_body: {{limit: {concurrency}}}}}}}\ncache: {{mode: 'off'}}\n"
        )
        world = WorldConfig(backend=f"llm:{models}", max_turns=turns)
        config = RunConfig(policy=f"llm:{models}", split="train", limit=conversations, batch=conversations, world=world)
        for name in scenario_ids("train")[:conversations]:
            get_scenario(name)  # people are composed before, once
        start, cpu = time.perf_counter(), time.process_time()
        result = run(config, Path(folder) / "runs")
        spent = {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}
        if result.failures or result.progress.turns != conversations * turns:
            sys.exit(f"not all was played: {result.progress}, {result.failures[:3]}")
    return spent


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--spread", type=float, default=0.05)
    args = parser.parse_args()
    ours, theirs = mp.Pipe()
    server = mp.get_context("spawn").Process(target=serve, args=(theirs, args.latency, args.spread), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}/v1"
    print(f"LiteLLM by itself: {per_call(url):.1f} ms of processor time a call")
    play(url, 2, 2, 10**6)  # what is loaded at first use
    for limit in (10**6, 8):
        turns = args.turns if limit > 8 else max(2, args.turns // 4)  # it takes its time
        ours.send("count")
        ours.recv()
        spent = play(url, args.conversations, turns, limit)
        ours.send("count")
        counted = ours.recv()
        tell(counted, spent, limit)
    ours.send("stop")
    server.join(10)


def tell(counted: dict[str, Any], spent: dict[str, float], limit: int) -> None:
    """Print one run."""
    calls, wall = counted["calls"], spent["wall"]
    print(f"\n{'no limit' if limit > 8 else f'a limit of {limit} in flight'}: {calls} calls, {wall:.2f} s")
    print(f"  processor time a call, all of ours included: {spent['cpu'] / calls * 1e3:.1f} ms")
    if limit > 8:
        slowest = counted["slowest"]
        print(f"  critical path of the slowest conversation: {slowest:.2f} s; {wall / slowest:.2f} x that")
    else:
        kept, mean = counted["full"] / counted["busy"], counted["area"] / counted["busy"]
        print(f"  in flight: {counted['most']} at most, {mean:.2f} in the mean, {limit} for {kept:.0%} of the time")


if __name__ == "__main__":
    main()
