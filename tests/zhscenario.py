"""A Chinese scenario for tests, made from an English one: every text another Chinese sentence."""

from __future__ import annotations

from itertools import count
from typing import Any

from echo_env.profiles import Scenario, get_scenario

_THINGS = "灯 伞 信 井 桥 鞋 碗 床 票 墙 钟 船 琴 锅 树 门 窗 书 笔 车 雪 狗 米 茶 镜 河 针 布 药 梯".split()
_DEEDS = "收进了柜子最里面 留在了老屋的台阶上 交给了隔壁的阿婆 卖掉以后再没提过 一直没舍得扔".split()
KEPT = {"id", "language", "split", "domain", "threshold", "axis", "kind", "feeling", "register", "defensiveness"}


def chinese() -> Scenario:
    """Return `career-01` with invented Chinese texts."""
    number = count()

    def sentence() -> str:
        k = next(number)
        thing, deed = _THINGS[k % len(_THINGS)], _DEEDS[k // len(_THINGS) % len(_DEEDS)]
        return f"那{thing}{_THINGS[(k * 7 + 3) % len(_THINGS)]}我{deed}。"

    def told(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: told(v, k) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [told(v, key) for v in value]
        return sentence() if isinstance(value, str) and key not in KEPT else value

    data = told(get_scenario("career-01").model_dump(by_alias=True))
    return Scenario.model_validate({**data, "id": "zh-made", "language": "zh", "split": "benchmark-zh"})
