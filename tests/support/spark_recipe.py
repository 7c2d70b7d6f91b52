"""The function of docs/spark.md as one barrier task, with a context that files stand in for."""

import os
import re
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


class Context:
    """What the function asks of Spark's `BarrierTaskContext`."""

    def __init__(self, rank: int, size: int, folder: Path):
        self.rank, self.size, self.folder = rank, size, folder

    def partitionId(self):
        return self.rank

    def getTaskInfos(self):
        return [SimpleNamespace(address="localhost:7077")] * self.size

    def allGather(self, message: str):
        places = [self.folder / f"message-{rank}" for rank in range(self.size)]
        # Written whole, or not there.
        part = self.folder / f"part-{self.rank}"
        part.write_text(message)
        part.rename(places[self.rank])
        while not all(place.exists() for place in places):
            time.sleep(0.01)
        return [place.read_text() for place in places]


def task(rank: int, size: int, folder: Path, batches: list) -> None:
    """Runs the function and stores the models that it yields."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    spark = ModuleType("pyspark")
    context = Context(rank, size, folder)
    spark.BarrierTaskContext = SimpleNamespace(get=lambda: context)  # pyright: ignore
    sys.modules["pyspark"] = spark
    code = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)[0]
    names: dict = {}
    exec(compile(code.replace("/shared/points", str(folder / "points")), "spark.md", "exec"), names)
    for k, batch in enumerate(names["fit_partition"](iter(batches))):
        (folder / f"model-{rank}-{k}").write_bytes(batch["model"][0].as_py())
