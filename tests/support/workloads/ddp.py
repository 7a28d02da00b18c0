"""Train a task by torch's own DistributedDataParallel over gloo, as a program: the reference.

``python -m tests.support.workloads.ddp TASK RANK WORLD STORE OUT``; and by one process.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from testbed.gnn.options import MinibatchSpec
from testbed.workloads.module.scenario import ModuleTable
from testbed.workloads.module.train import ModuleTrainer

SEED = 3
SPEC = MinibatchSpec(batch_size=8, epochs=2, learning_rate=0.05, weight_decay=0.1, optimizer="sgd")


def alone(task: str, spec: MinibatchSpec) -> torch.nn.Module:
    """Train in a plain loop, in this process."""
    trainer = ModuleTrainer(ModuleTable(task=task), spec, 0, 1, SEED)
    torch.manual_seed(SEED)
    trainer.model = trainer.task.model()
    train(trainer, trainer.model, spec)
    made: torch.nn.Module = trainer.model
    return made


def train(trainer: ModuleTrainer, model: torch.nn.Module, spec: MinibatchSpec) -> None:
    """Train `model` on a trainer's minibatches as torch's documentation does it."""
    used = [each for each in model.parameters() if each.requires_grad]
    make: Any = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[spec.optimizer]
    optimizer = make(used, lr=spec.learning_rate, weight_decay=spec.weight_decay)
    for epoch in range(spec.epochs):
        for step, seeds in enumerate(trainer.batches(epoch)):
            optimizer.zero_grad()
            trainer.loss(epoch, step, np.asarray(seeds)).backward()  # type: ignore[no-untyped-call]
            for each in used:
                if each.grad is not None and each.grad.is_sparse:
                    each.grad = each.grad.to_dense()
            optimizer.step()


def main() -> None:
    task, rank, world, store, out = sys.argv[1:]
    dist.init_process_group("gloo", f"file://{store}", rank=int(rank), world_size=int(world))
    trainer = ModuleTrainer(ModuleTable(task=task), SPEC, int(rank), int(world), SEED)
    torch.manual_seed(SEED)
    model = trainer.task.model()
    together = DistributedDataParallel(model, find_unused_parameters=True)
    trainer.model = together
    train(trainer, model, SPEC)
    if rank == "0":
        torch.save(model.state_dict(), Path(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
