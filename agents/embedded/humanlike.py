"""stub"""

from echo_env.types import Verdict


class EmbeddedHumanlike:
    id = "x"

    def __init__(self, context: bool = True) -> None:
        pass

    async def verdict(self, view):
        return Verdict(kind="humanlike", judge=self.id, value=1.0)
